package nettest

import (
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Hang mounts a FUSE file system without a server on a folder: every access to it hangs
// until heal is called or the test ends. heal makes the accesses that hang fail.
func Hang(t testing.TB, folder string) (heal func()) {
	t.Helper()
	Need(t)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("a file system that hangs: /dev/fuse: %v", err)
	}
	if err := unix.Mount("hangs", folder, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		unix.Close(fd)
		t.Skipf("a file system that hangs: mount: %v", err)
	}
	heal = sync.OnceFunc(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	unmountLater(t, folder)
	t.Cleanup(heal) // before the unmount
	return heal
}
