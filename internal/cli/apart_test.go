package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/test/programs"
)

// From include/uapi/linux/fs.h.
const (
	freeze = 0xc0045877 // FIFREEZE, _IOWR('X', 119, int)
	thaw   = 0xc0045878 // FITHAW
)

// frozen mounts a frozen file system at a folder. No signal ends a process that writes to it, until
// melt or the test's end thaws it.
func frozen(t *testing.T, dir string) (melt func()) {
	t.Helper()
	nettest.Must(t, os.MkdirAll(dir, 0o755))
	nettest.MountExt4(t, dir)
	f, err := os.Open(dir)
	nettest.Must(t, err)
	nettest.Must(t, unix.IoctlSetInt(int(f.Fd()), freeze, 0))
	melt = sync.OnceFunc(func() {
		if err := errors.Join(unix.IoctlSetInt(int(f.Fd()), thaw, 0), f.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(melt)
	return melt
}

// The commands end although not even SIGKILL ends one of their threads. So does a program that
// reads their output.
func TestHangsForGood(t *testing.T) {
	nettest.Need(t)
	bin := programs.Own(t)
	for command, want := range map[string]string{
		"doctor": "unknown sync no answer within 5s",
		"bundle": "b.tar.gz (",
	} {
		t.Run(command, func(t *testing.T) {
			dir := t.TempDir()
			melt := frozen(t, root.Dir(dir).State())
			args := []string{"--root", dir, command, "--conf-dir", dir}
			if command == "bundle" {
				args = append(args, "-o", filepath.Join(dir, "b.tar.gz"))
			}
			cmd := exec.Command(filepath.Join(bin, "berth"), args...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			nettest.Must(t, cmd.Start())
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-time.After(nettest.Deadline):
				melt()
				<-ended
				t.Errorf("it ended only when the file system answered: %s", &out)
			}
			if said := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(said, want) { // however wide the columns are
				t.Errorf("it does not say %q: %s", want, &out)
			}
		})
	}
}

// A command in a process of its own has that process's exit code.
func TestApartCode(t *testing.T) {
	nettest.Need(t)
	bin := programs.Own(t)
	for _, c := range []struct {
		args string
		code int
		out  string
	}{
		{"doctor", 1, "bad      agent"},
		{"bundle -o none/b.tgz", 1, "stat none: no such file"},
		{"bundle -o b.tgz", 0, "b.tgz ("},
		{"doctor nix", 2, "unknown command"},
	} {
		dir := t.TempDir()
		cmd := exec.Command(filepath.Join(bin, "berth"), append(strings.Fields(c.args), "--root", dir)...)
		cmd.Dir = dir
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.out) {
			t.Errorf("berth %s: exit code %d, want %d\n%s", c.args, code, c.code, out)
		}
	}
}
