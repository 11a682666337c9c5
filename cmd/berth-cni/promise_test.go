package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// If the plugin can promise nothing, DEL says what is wrong, and cuts the pod off all the
// same.
func TestNotPromised(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(a *away, folder string)
		want    string
	}{
		"disk full": {func(a *away, folder string) { nettest.Fill(a, a.root) }, "no space left on device"},
		"read-only": {func(a *away, folder string) {
			must(a, unix.Mount("", a.root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, "read-only file system"},
		"a file": {func(a *away, folder string) { must(a, os.WriteFile(folder, nil, 0o600)) }, "not a directory"},
		"a link": {func(a *away, folder string) { must(a, os.Symlink("/tmp", folder)) }, "opening "},
		"no state": {func(a *away, folder string) {
			must(a, os.RemoveAll(filepath.Dir(folder)))
			must(a, os.WriteFile(filepath.Dir(folder), nil, 0o600))
		}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			nettest.Need(t)
			nettest.Mount(t, dir, "size=1m")
			a := newAway(t, dir)
			test.prepare(a, deletions.Path(root.Dir(dir)))
			out, code := a.del(prevResult(ownLink))
			if code != 11 || !strings.Contains(out, "the plugin could not queue the deletion") || !strings.Contains(out, test.want) || !strings.Contains(out, "berthd.sock: no such file") {
				t.Errorf("code %d: %s", code, out)
			}
			if got := a.down(); got != ownLink {
				t.Errorf("down are %q", got)
			}
		})
	}
}

// A full disk stops ADD first and DEL last.
func TestPromisedOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	nettest.Need(t)
	nettest.Mount(t, dir, "size=4m")
	a := newAway(t, dir)
	q, err := deletions.Open(root.Dir(dir))
	must(a, err)
	if _, err := q.Refill(deletions.Spares); err != nil {
		t.Fatal(err)
	}
	nettest.Fill(a, a.root)
	if out, code := a.del(prevResult(ownLink)); code != 0 || out != "" {
		t.Fatalf("code %d: %s", code, out)
	}
	if r := a.one(); !r.Cut || a.down() != ownLink {
		t.Errorf("queued is %+v, down are %q", r, a.down())
	}
}

// One user may neither write to the queue nor set links down, another user may only write.
func TestWithoutRights(t *testing.T) {
	programs.Root(t, "nobody else can become another user")
	for name, test := range map[string]struct {
		mode   os.FileMode
		want   string
		queued int
	}{
		"neither": {0o700, "permission denied", 0},
		"write":   {0o777, "the pod is not cut off", 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAway(t, t.TempDir())
			for path := root.Dir(a.root).State(); len(path) >= len(a.root); path = filepath.Dir(path) {
				must(a, os.Chmod(path, 0o755))
			}
			must(a, os.Chmod(filepath.Dir(a.root), 0o755))
			must(a, os.Chmod(root.Dir(a.root).State(), test.mode))
			cmd := exec.Command(filepath.Join(bin, "berth-cni"))
			for k, v := range podEnv("DEL") {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			cmd.Stdin = strings.NewReader(conf(a.root, prevResult(ownLink)))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			out, err := cmd.Output()
			if err == nil || failure(t, out) != 11 || !strings.Contains(string(out), test.want) {
				t.Errorf("%v: %s", err, out)
			}
			all, err := queued(a.root)
			if folder := deletions.Path(root.Dir(a.root)); test.queued > 0 {
				if err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
					t.Errorf("another user's queue is read: %+v, %v", all, err)
				}
				must(a, os.Chown(folder, 0, 0))
				all, err = queued(a.root)
			}
			if err != nil || len(all) != test.queued {
				t.Errorf("queued are %+v, %v", all, err)
			}
			if got := a.down(); got != "" {
				t.Errorf("down are %q", got)
			}
		})
	}
}
