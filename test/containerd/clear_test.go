package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/test/programs"
)

// adopt makes this process the parent of orphans among its descendants, such
// as shims and containers, so that clear finds them.
func adopt(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatalf("becoming the reaper of orphans: %v", err)
	}
}

// cacheOfItsOwn mounts a tmpfs on libcniCache, in the test's mount namespace.
func cacheOfItsOwn(t *testing.T) {
	t.Helper()
	err := os.Mkdir(libcniCache, 0o755)
	if err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	made := err == nil
	if err := unix.Mount("test", libcniCache, "tmpfs", 0, ""); err != nil {
		t.Fatalf("mounting a tmpfs on %s: %v", libcniCache, err)
	}
	t.Cleanup(func() {
		unix.Unmount(libcniCache, unix.MNT_DETACH)
		if made {
			os.Remove(libcniCache)
		}
	})
}

// clear ends what is left of pods after a test that failed, and gives back mounts and cgroups.
// After a test that passed there are only empty cgroups. The test's own processes must have
// ended: start them later than the daemon.
func (d *daemon) clear(t *testing.T) {
	for pids := orphans(t); len(pids) > 0; pids = orphans(t) {
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		// Wait for whichever orphan ends first: the init of a pid namespace ends after all
		// others in it, and a shim's end makes orphans of its containers.
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
			t.Errorf("waiting for orphans: %v", err)
			break
		}
	}
	for slices.ContainsFunc(mountsBelow(t, d.dir), func(m string) bool { return unix.Unmount(m, unix.MNT_DETACH) == nil }) {
	}
	programs.RemoveCgroup(t, d.cgroup)
}

// orphans returns this process's children.
func orphans(t *testing.T) []int {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Error(err)
	}
	var pids []int
	for _, l := range lists {
		raw, _ := os.ReadFile(l) // a thread may have ended
		for _, f := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// mountsBelow returns the mount points below dir, the innermost first.
func mountsBelow(t *testing.T, dir string) []string {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	var points []string
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	slices.Reverse(points)
	return points
}
