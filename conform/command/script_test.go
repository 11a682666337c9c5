package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/berth-net/berth/conform/internal/trial"
)

var must = trial.Must

// bin is the folder of the program cni-conform.
var bin string

func TestMain(m *testing.M) {
	trial.FindSystem()
	var err error
	if bin, err = os.MkdirTemp("", "conform-command-*"); err == nil {
		err = build(bin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(bin)
	os.Exit(code)
}

func build(dir string) error {
	c := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "../cmd/cni-conform")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("building cni-conform: %w: %s", err, out)
	}
	return os.Chmod(dir, 0o755)
}

// TestScripts runs the built program. It makes the namespaces in which it judges by itself.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
			return nil
		},
	})
}
