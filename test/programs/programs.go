// Package programs finds the programs that tests with real components run:
// Berth's own programs, built from this tree, and the programs of test/peers.
package programs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Tree returns the top folder of the repository that the test lies in.
func Tree(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd() // go test runs a test in its package's folder
	nettest.Must(t, err)
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if mod, _ := os.ReadFile(filepath.Join(dir, "go.mod")); strings.HasPrefix(string(mod), "module github.com/berth-net/berth\n") { // and not a module of a folder's own
			return dir
		}
	}
	t.Fatal("the test does not run below the repository's go.mod")
	return ""
}

// own is the folder of Berth's programs, once they are built.
var own struct {
	sync.Once
	dir    string
	output []byte
	err    error
}

// Main runs a package's tests inside a fresh node, as nettest.Main does, and
// removes what Own has built for them.
func Main(m *testing.M) {
	nettest.Enter()
	os.Exit(Outside(m))
}

// Outside runs a package's tests in the namespaces in which they are started, and removes
// what Own has built for them.
func Outside(m *testing.M) (code int) {
	defer func() {
		if own.dir != "" {
			os.RemoveAll(own.dir)
		}
	}()
	return m.Run()
}

// Own returns a folder of Berth's programs for all tests of a package, which anybody can read. `make test` has just built the programs, once
// for all packages, and names their folder in BERTH_PROGRAMS; without that Own builds them. So a test never runs programs of an earlier build.
func Own(t testing.TB) string {
	t.Helper()
	own.Do(func() {
		if own.dir, own.err = os.MkdirTemp("", "berth-programs-"); own.err != nil {
			return
		}
		if own.err = os.Chmod(own.dir, 0o755); own.err != nil {
			return
		}
		if built := os.Getenv("BERTH_PROGRAMS"); built != "" {
			own.err = link(built, own.dir)
			return
		}
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", own.dir+"/", "./cmd/...")
		build.Dir = Tree(t)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		own.output, own.err = build.CombinedOutput()
	})
	if own.err != nil {
		t.Fatalf("making Berth's programs: %v\n%s", own.err, own.output)
	}
	return own.dir
}

// link makes links to the files of one folder in another: tests tell their processes from those of other packages by the folder.
func link(from, to string) error {
	files, err := os.ReadDir(from)
	for _, f := range files {
		err = errors.Join(err, os.Link(filepath.Join(from, f.Name()), filepath.Join(to, f.Name())))
	}
	return err
}

// Peers returns the folder that `make peers` fills. It ends the test if the folder lacks
// one of the programs: tests cannot build them, because their network namespace leads
// nowhere.
func Peers(t testing.TB, names ...string) string {
	t.Helper()
	dir := filepath.Join(Tree(t), "bin", "peers")
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			Missing(t, name+" is missing: run `make peers`")
		}
	}
	return dir
}

// Flannel returns the folder that `make flannel` fills, and ends the test if nobody has filled it.
func Flannel(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(Tree(t), "bin", "flannel")
	if _, err := os.Stat(filepath.Join(dir, ".stamp")); err != nil {
		Missing(t, "flannel is missing: run `make flannel`")
	}
	return dir
}

// Need ends the test unless all of these programs are in PATH.
func Need(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			Missing(t, name+" is missing: run `make deps` as root")
		}
	}
}

// Root ends the test unless it runs as the machine's own root.
func Root(t testing.TB, why string) {
	t.Helper()
	if !InitialUser() {
		Missing(t, "not root, and "+why)
	}
}

// Missing skips the test or, if NETTEST_REQUIRED=1 is set, fails it.
func Missing(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("NETTEST_REQUIRED") == "1" {
		t.Fatalf("%s, and NETTEST_REQUIRED=1 is set", reason)
	}
	t.Skip(reason)
}
