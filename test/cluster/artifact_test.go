package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// artifacts is the folder of what all tests of the process share. TestMain makes and removes it.
var artifacts string

// artifact is a file that the first test which needs it makes, for all tests of the process.
type artifact struct {
	name string // in artifacts
	once sync.Once
	err  error
}

// file returns the artifact's path. make writes the file, and serves no test in particular: its error is that of every test that
// needs the file.
func (a *artifact) file(t testing.TB, make func(path string) error) (path string) {
	t.Helper()
	path = filepath.Join(artifacts, a.name)
	a.once.Do(func() { a.err = make(path) })
	must(t, a.err)
	return path
}

// goBuild runs `go` with these arguments and variables of the environment.
func goBuild(env []string, args ...string) error {
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), env...)
	return quiet(build)
}

// quiet runs a command, whose error then has all that the command has printed.
func quiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}
