// Command cni-conform holds any CNI plugin to the specification and looks for what it leaves behind. It is `berth conform` without
// Berth.
package main

import (
	"os"

	"github.com/berth-net/berth/conform/command"
)

func main() { os.Exit(command.Main(os.Args[1:])) }
