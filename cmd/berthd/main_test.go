package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/nettest"
)

// A root is made absolute, and has to be there before anything is made in it.
func TestPlace(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	file := filepath.Join(dir, "file")
	nettest.Must(t, os.WriteFile(file, nil, 0o600))
	for given, want := range map[string]string{".": dir, "": "", dir + "/x/..": dir, "/": "/"} {
		f := flags{root: given}
		if err := f.place(); (err != nil) != (want == "") || err == nil && f.root != want {
			t.Errorf("--root %q: %q, %v, want %q", given, f.root, err, want)
		}
	}
	for given, want := range map[string]string{
		"":         "--root is empty",
		"a":        dir + "/a does not exist: make it first",
		file:       "is not a directory",
		file + "/": "is not a directory",
		"file/a":   "not a directory",
	} {
		c := command(new(flags), daemon.NewLogWriter(io.Discard))
		c.SetArgs([]string{"--root", given, "--pool", "a=10.0.0.0/24"})
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--root %q: %v, want %q", given, err, want)
		}
	}
	if made, err := filepath.Glob(dir + "/*"); err != nil || len(made) != 1 {
		t.Errorf("made are %v, %v", made, err)
	}
}

// --remove, called as in its example, needs no pool; every other run of berthd needs one.
func TestRemoveNeedsNoPool(t *testing.T) {
	for _, f := range []flags{{remove: true}, {}, {rebuild: true}} {
		f.root = t.TempDir()
		if _, err := f.load(false); (err == nil) != f.remove {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// A plain user hears that berthd needs root, and root does not.
func TestRemedied(t *testing.T) {
	forbidden := fmt.Errorf("opening netlink: %w", os.NewSyscallError("setns", syscall.EPERM))
	for _, c := range []struct {
		err  error
		uid  int
		says bool
	}{
		{forbidden, 1000, true}, {forbidden, 0, false},
		{fmt.Errorf("entering: %w", kernel.ErrPermission), 1000, true},
		{io.EOF, 1000, false},
	} {
		got := remedied(c.err, c.uid)
		if strings.HasSuffix(got.Error(), "; run it as root") != c.says || !errors.Is(got, c.err) {
			t.Errorf("uid %d: %v", c.uid, got)
		}
	}
	if err := remedied(nil, 1000); err != nil {
		t.Error(err)
	}
}
