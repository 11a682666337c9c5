package main

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// On a disk that hangs, such as one that is frozen, or of a server that is away,
// nothing can be promised. DEL says so in time, and the pod is cut off all the same.
func TestDiskHangs(t *testing.T) {
	a := newAway(t, t.TempDir())
	a.hang(root.Dir(a.root).State())
	status, out, _ := inside(t, podEnv("DEL"), strings.NewReader(conf(a.root, prevResult(ownLink))), false)
	if status != 1 || failure(t, []byte(out)) != 11 || !strings.Contains(out, "the deletion is not promised") ||
		!strings.Contains(out, "the disk has not answered in time") {
		t.Errorf("%d %s", status, out)
	}
	if got := a.down(); got != ownLink {
		t.Errorf("down are %q", got)
	}
}

// hang mounts a file system on a folder that answers nobody until the test's end: one
// of FUSE, without a server.
func (a *away) hang(folder string) {
	a.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		a.Skip(err)
	}
	a.must(unix.Mount("hangs", folder, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	a.Cleanup(func() {
		a.must(unix.Close(fd)) // which fails whoever waits
		a.must(unix.Unmount(folder, unix.MNT_DETACH))
	})
}
