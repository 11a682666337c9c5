// Command berth shows and steers a node agent, and installs its CNI plugin. Under the name kubectl-berth it is kubectl's
// plugin, which asks the agents of a cluster's nodes.
package main

import (
	"os"
	"path/filepath"

	"github.com/berth-net/berth/internal/cli"
	"github.com/berth-net/berth/internal/kubectl"
)

func main() {
	if filepath.Base(os.Args[0]) == kubectl.Name {
		os.Exit(kubectl.Main(os.Args[1:]))
	}
	os.Exit(cli.Main(os.Args[1:]))
}
