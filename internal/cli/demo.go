package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/internal/demo"
)

func (a *app) demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "See it work: 20 pods, a killed agent, nothing left behind",
		Long: `Start the agent in fresh namespaces, attach 20 pods through the CNI plugin, ping
between them, kill the agent in the middle of detaching, start it again, and
count what is left. It takes a few seconds, runs as root and as any user, needs
berthd and berth-cni beside this program, and touches neither the machine's
network nor its files. If nothing is left, its last line is "residue: 0";
otherwise the exit code is not 0.`,
		Example: `  berth demo`,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.output != "" {
				return usage{errors.New("berth demo has no -o: it only prints text")}
			}
			return demo.Run(c.Context(), os.Stdout)
		},
	}
}
