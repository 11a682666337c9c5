package nettest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netnsDir is where the node's named network namespaces are (ip-netns(8)).
const netnsDir = "/run/netns"

// settle is the part of Enter that runs inside the node. host is the value of envHost.
func settle(host string) {
	node.entered, node.host = true, host
	state := os.Getenv(envState)
	if state == "fresh" {
		FindSystem()
		state = "ready"
		if err := furnish(); err != nil {
			state = fmt.Sprintf("no node in fresh namespaces: %v", err)
		}
		os.Setenv(envState, state) // for child processes that call Enter
	}
	if state != "ready" {
		node.reason = state
	}
}

// FindSystem lets this process, and its children, find ip, nft and their like by their names. A
// plain user's PATH may lack the folders where these are.
func FindSystem() {
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
}

// furnish turns fresh namespaces into a node. Nothing that it mounts is seen outside, /run
// is empty, /sys shows the new network namespace if the kernel allows that, and lo is up.
func furnish() error {
	if err := clearOfRun(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil { // mount --make-rprivate /
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("nettest", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mounting a tmpfs on /run: %w", err)
	}
	if err := os.Mkdir(netnsDir, 0o755); err != nil {
		return err
	}
	if err := FreshSysfs(); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return LoopbackUp()
}

// clearOfRun returns an error if the test needs something that the new /run would hide.
func clearOfRun() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	for _, path := range []string{exe, cwd, os.TempDir()} {
		if real, err := filepath.EvalSymlinks(path); err == nil && strings.HasPrefix(real+"/", "/run/") {
			return fmt.Errorf("%s lies below /run, which the tests have of their own: set TMPDIR, or work elsewhere", path)
		}
	}
	return nil
}

// FreshSysfs replaces /sys, in this process's mount namespace, by a sysfs that shows this network namespace, and
// keeps what is mounted below /sys (cgroup, bpf). In a user namespace the kernel may refuse the new sysfs (EPERM);
// then /sys stays as it is.
func FreshSysfs() error {
	const at = "/run/nettest-sys"
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	defer os.Remove(at)
	if err := unix.Mount("nettest", at, "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting sysfs: %w", err)
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	below, err := mountsBelow("/sys")
	if err != nil {
		return err
	}
	for _, m := range below { // mount --rbind M /run/nettest-sys/...
		if err := unix.Mount(m, at+strings.TrimPrefix(m, "/sys"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keeping %s: %w", m, err)
		}
	}
	// Without this unmount, the kernel would list the mounts of the old /sys twice. In a user
	// namespace the kernel refuses the unmount, and the new /sys only hides the old one.
	_ = unix.Unmount("/sys", unix.MNT_DETACH)
	if err := unix.Mount(at, "/sys", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting /sys: %w", err)
	}
	return nil
}

// mountsBelow returns the topmost mount points below dir.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append(points, fields[4])
		}
	}
	slices.Sort(points)
	var top []string
	for _, p := range points {
		if len(top) == 0 || p != top[len(top)-1] && !strings.HasPrefix(p, top[len(top)-1]+"/") {
			top = append(top, p)
		}
	}
	return top, lines.Err()
}

// LoopbackUp is `ip link set lo up`, in the calling thread's namespace.
func LoopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	return nil
}
