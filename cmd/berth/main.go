// Command berth shows and steers a node agent, and installs its CNI plugin.
package main

import (
	"os"

	"github.com/berth-net/berth/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
