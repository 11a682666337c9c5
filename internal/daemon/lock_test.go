package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// Only one holder has the lock at a time, and whoever is refused hears who the holder is. The lock
// outlives its file, but not its holder: a file that a killed holder left is no lock.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	must(t, os.WriteFile(path, []byte("process 1, --root /killed/by/a/long/name\n"), 0o600))
	for _, free := range []string{path, path + ".none"} {
		if who, locked := root.Locked(free); locked {
			t.Errorf("%s is locked by %s", free, who)
		}
	}
	one, err := take(path, "/a", nil)
	must(t, err)
	if who, locked := root.Locked(path); !locked || !strings.HasSuffix(who, ", --root /a") {
		t.Errorf("locked %t, by %q", locked, who)
	}
	if _, err := take(path, "/b", nil); !errors.Is(err, ErrTwice) || !strings.HasSuffix(err.Error(), ", --root /a)") {
		t.Errorf("a second time: %v", err)
	}
	must(t, os.Remove(path))
	if there, err := one.there(); there || err != nil {
		t.Error("it does not see that its file is removed")
	}
	two, err := take(path, "/b", nil)
	must(t, err)
	must(t, one.release()) // this must leave the other's file alone
	if there, err := two.there(); !there || err != nil {
		t.Error("the file of a lock that is held is removed")
	}
	time.AfterFunc(2*lockPoll, func() {
		if err := two.release(); err != nil {
			t.Error(err)
		}
	})
	three, err := take(path, "/c", nil) // the other one is just ending
	must(t, err)
	must(t, three.release())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its file is left: %v", err)
	}
	must(t, os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), path))
	if _, err := take(path, "/d", nil); !errors.Is(err, unix.ELOOP) {
		t.Errorf("with a link in its file's place: %v", err)
	}
}

// The look at the lock's file fails for a passing reason, or somebody moves the file away and back:
// the daemon has its lock, and does not take itself for another daemon. It locks the instance again
// once the file is gone, and sees another daemon that has.
func TestLockIsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	d := &Daemon{Core: Core{Place: Place{Sole: func(_ string, dir root.Dir, held *Lock) (*Lock, error) { return take(path, dir, held) }}}}
	locked, err := d.Sole("", "/a", nil)
	must(t, err)
	d.locked = locked
	for _, passing := range []error{unix.ENOMEM, unix.EIO, unix.EACCES, unix.ENOENT} { // ENOENT: the file is back when the daemon opens it
		locked.lstat = func(path string) (os.FileInfo, error) {
			locked.lstat = os.Lstat
			return nil, &os.PathError{Op: "lstat", Path: path, Err: passing}
		}
		err := d.LockAgain()
		if d.locked != locked || errors.Is(err, ErrTwice) || passing != unix.ENOENT && !errors.Is(err, passing) {
			t.Errorf("after %v: %v", passing, err)
		}
		must(t, d.LockAgain())
	}
	must(t, os.Remove(path))
	must(t, d.LockAgain())
	if there, err := d.locked.there(); d.locked == locked || !there || err != nil {
		t.Errorf("the file that was removed is not there again: %v", err)
	}
	must(t, os.Remove(path))
	other, err := take(path, "/b", nil)
	must(t, err)
	if err := d.LockAgain(); !errors.Is(err, ErrTwice) {
		t.Errorf("beside another daemon: %v", err)
	}
	must(t, other.release())
	must(t, d.Unlock())
}
