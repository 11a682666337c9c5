package cli

import (
	"github.com/spf13/cobra"

	"github.com/berth-net/berth/conform/command"
)

// conformCommand is the suite's own command, which is a program besides, too (conform/cmd/cni-conform).
func (a *app) conformCommand() *cobra.Command { return command.New("berth conform") }
