package nettest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestFurnish(t *testing.T) {
	Need(t)
	links, err := netlink.LinkList()
	Must(t, err)
	if len(links) != 1 || links[0].Attrs().Name != "lo" || links[0].Attrs().RawFlags&1 == 0 {
		t.Errorf("a fresh node has other links than lo, or it is down: %v", links)
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	Must(t, err)
	if strings.Contains(string(info), " shared:") || strings.Contains(string(info), " master:") {
		t.Errorf("mounts are seen outside, or come from there:\n%s", info)
	}
	if !strings.Contains(string(info), " /run rw,nosuid,nodev,relatime - tmpfs nettest ") {
		t.Errorf("/run is not the node's own:\n%s", info)
	}
	if !strings.Contains(string(info), " - sysfs nettest ") {
		t.Log("this kernel does not let a user namespace have a /sys of its own")
		return
	}
	devices, err := filepath.Glob("/sys/class/net/*")
	if err != nil || !slices.Equal(devices, []string{"/sys/class/net/lo"}) {
		t.Errorf("/sys shows other links: %v %v", devices, err)
	}
}

// Mounts below /sys stay, and are listed once.
func TestFurnishKeepsCgroups(t *testing.T) {
	Need(t)
	info, err := os.ReadFile("/proc/self/mountinfo")
	Must(t, err)
	if !strings.Contains(string(info), " /sys/fs/cgroup") || !strings.Contains(string(info), " - sysfs nettest ") {
		t.Log("no cgroups are mounted here, or /sys is the machine's")
		return
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*")
	if err != nil || len(groups) == 0 {
		t.Errorf("no cgroups are left: %v", err)
	}
	uids, err := os.ReadFile("/proc/self/uid_map")
	Must(t, err)
	machine := strings.Contains(string(uids), "4294967295") // no user namespace
	if machine && strings.Count(string(info), " /sys/fs/cgroup ") != 1 {
		t.Errorf("/sys/fs/cgroup is mounted more than once:\n%s", info)
	}
}

func TestMountsBelow(t *testing.T) {
	all, err := mountsBelow("")
	if err != nil || !slices.Contains(all, "/proc") || slices.Contains(all, "/sys/fs/cgroup") {
		t.Errorf("the topmost mounts are %v (%v)", all, err)
	}
}
