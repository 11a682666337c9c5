package oracle

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestStateDiff(t *testing.T) {
	a := State{[]string{"link a", "link a", "route x"}}
	b := State{[]string{"link a", "link b"}}
	if got, want := a.Diff(b), "-link a\n+link b\n-route x\n"; got != want {
		t.Errorf("diff is %q, not %q", got, want)
	}
	if got := a.Diff(a); got != "" {
		t.Errorf("diff to itself is %q", got)
	}
	if got := a.Without("link").String(); got != "route x" {
		t.Errorf("without links: %q", got)
	}
	if got, want := a.Only("route").And(b).String(), "link a\nlink b\nroute x"; got != want {
		t.Errorf("together: %q, not %q", got, want)
	}
	if got := b.Only("link").Diff(b); got != "" {
		t.Errorf("links only: %q", got)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	if got := files(t, filepath.Join(dir, "missing")).String(); got != "" {
		t.Errorf("of a missing directory: %q", got)
	}
	before := files(t, dir)
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a/f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := before.Diff(files(t, dir)), "+file a drwx------\n+file a/f -rw-------\n"; got != want {
		t.Errorf("diff is %q, not %q", got, want)
	}
}

func files(t *testing.T, dir string) State {
	t.Helper()
	s, err := Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// List calls a reader again if the kernel marks the reader's list as interrupted. List returns any
// other error to its caller.
func TestList(t *testing.T) {
	calls := 0
	moving := func() ([]int, error) {
		calls++
		if calls < 3 {
			return []int{0}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	}
	if all, err := List(moving); err != nil || !slices.Equal(all, []int{1, 2}) {
		t.Errorf("after two interrupted dumps List returns %v, %v", all, err)
	}
	if _, err := List(func() ([]int, error) { return nil, unix.EPERM }); !errors.Is(err, unix.EPERM) {
		t.Errorf("a refused dump is %v", err)
	}
}
