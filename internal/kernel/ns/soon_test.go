package ns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A path on a file system that hangs is given up on, at once from the second time on,
// and is a path like others when that answers again.
func TestOpenHangs(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	// Without a server it answers nobody.
	if err := unix.Mount("hangs", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		unix.Close(fd)
		t.Skip(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	ref := Ref{Path: filepath.Join(dir, "netns"), Ino: 1}
	for range 100 {
		begun := time.Now()
		if n, err := ref.Open(); !errors.Is(err, ErrHangs) {
			t.Errorf("it opens %v, %v, after %v", n, err, time.Since(begun))
		}
	}
	if err := os.NewSyscallError("close", unix.Close(fd)); err != nil { // which fails whoever waits
		t.Error(err)
	}
	for begun := time.Now(); ; {
		if _, err := ref.Open(); !errors.Is(err, ErrHangs) {
			break
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal("it is said to hang still")
		}
	}
}
