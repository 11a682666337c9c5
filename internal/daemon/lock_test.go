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
	one, err := take(path, "/a")
	must(t, err)
	if who, locked := root.Locked(path); !locked || !strings.HasSuffix(who, ", --root /a") {
		t.Errorf("locked %t, by %q", locked, who)
	}
	if _, err := take(path, "/b"); !errors.Is(err, ErrTwice) || !strings.HasSuffix(err.Error(), ", --root /a)") {
		t.Errorf("a second time: %v", err)
	}
	must(t, os.Remove(path))
	if one.there() {
		t.Error("it does not see that its file is removed")
	}
	two, err := take(path, "/b")
	must(t, err)
	must(t, one.release()) // this must leave the other's file alone
	if !two.there() {
		t.Error("the file of a lock that is held is removed")
	}
	time.AfterFunc(2*lockPoll, func() {
		if err := two.release(); err != nil {
			t.Error(err)
		}
	})
	three, err := take(path, "/c") // the other one is just ending
	must(t, err)
	must(t, three.release())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its file is left: %v", err)
	}
	must(t, os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), path))
	if _, err := take(path, "/d"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("with a link in its file's place: %v", err)
	}
}
