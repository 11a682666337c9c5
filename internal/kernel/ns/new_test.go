package ns_test

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

func TestNew(t *testing.T) {
	nettest.Need(t)
	home, path := threadNetns(), filepath.Join(t.TempDir(), "pod")
	n, err := ns.New(path)
	must(t, err)
	t.Cleanup(func() { nettest.Delete(t, n) })
	again, err := n.Ref().Open()
	must(t, err)
	again.Close()
	if got := threadNetns(); got != home || got == named(n) {
		t.Errorf("in %s after New made %s, and before in %s", got, named(n), home)
	}
}

func TestNewRefuses(t *testing.T) {
	nettest.Need(t)
	dir := t.TempDir()
	if n, err := ns.New(filepath.Join(dir, "none", "pod")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("in a folder that is not there: %v, %v", n, err)
	}
	if n, err := ns.New(dir); !errors.Is(err, unix.EISDIR) {
		t.Errorf("a folder: %v, %v", n, err)
	}
}

// A namespace without a path is not the process's namespace, and ends when its holder closes it.
func TestUnbound(t *testing.T) {
	nettest.Need(t)
	home := threadNetns()
	n, err := ns.Unbound()
	must(t, err)
	if got := threadNetns(); got != home || got == named(n) {
		t.Errorf("in %s after Unbound made %s, and before in %s", got, named(n), home)
	}
	if err := n.Do(func() error { return nil }); err != nil {
		t.Error(err)
	}
	must(t, n.Close())
	if err := n.Do(func() error { return nil }); err == nil {
		t.Error("a closed namespace can be entered")
	}
}
