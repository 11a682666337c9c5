package rtnl

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Regroup moves links, found by their names, to a group, and returns one answer for each
// link. If there is no such link the answer is kernel.ErrNotFound.
//
//	echo N > /sys/class/net/NAME/netdev_group; else ip link set NAME group N
//
// Regroup writes to sysfs, because a change by netlink notifies the whole kernel, and IPv6
// then walks all of the node's IPv6 routes, if the link has IPv6 (rt6_sync_up: 0.7 ms at
// 10,000 routes). If the write fails (sysfs is not mounted, is read-only, or shows
// another network namespace), Regroup uses netlink, whose answer counts.
func (c *Conn) Regroup(group uint32, names ...string) []error {
	errs := make([]error, len(names))
	var rs []Request
	var of []int // for each request the index of its name
	for i, name := range names {
		if c.at != nil || !sysfsWaits() || writeGroup(name, group) != nil {
			rs, of = append(rs, SetLink(name, Group(group))), append(of, i)
		}
	}
	for i, err := range c.Each(rs...) {
		errs[of[i]] = err
	}
	return errs
}

// writeGroup changes a link's group by way of sysfs.
func writeGroup(name string, group uint32) error {
	if strings.Contains(name, "/") { // no link can have such a name: netlink refuses it
		return unix.EINVAL
	}
	fd, err := unix.Open("/sys/class/net/"+name+"/netdev_group", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Write(fd, strconv.AppendUint(nil, uint64(group), 10))
		if err != unix.EINTR {
			return os.NewSyscallError("write", err)
		}
	}
}

// sysfsWaits reports whether a write to sysfs waits in line for the lock of all links
// (RTNL), as it does since Linux 6.15. Earlier kernels only try the lock again and again,
// and never get it while many others wait in line.
var sysfsWaits = sync.OnceValue(func() bool {
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return false
	}
	return atLeast(unix.ByteSliceToString(uts.Release[:]), 6, 15)
})

// atLeast reports whether a kernel's release, such as "6.18.4-amd64", is that
// version or a later one.
func atLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a > major || a == major && b >= minor
}
