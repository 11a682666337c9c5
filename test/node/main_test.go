// Package node tests a node's life with the real programs, berthd and
// berth-cni: reboots, neighbours, bad disks, flushed tables, changed
// configurations, kills.
package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// bin is the folder of the programs that the tests run.
var bin string

func TestMain(m *testing.M) {
	nettest.Enter()
	os.Exit(run(m))
}

// run builds the programs once, so that no test runs those of yesterday.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "berth-node")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	build := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "./cmd/...")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building Berth's programs: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
