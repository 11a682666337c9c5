package rtnl

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Regroup moves links, found by their names, to a group; one answer a link. One
// that is not there is kernel.ErrNotFound.
//
//	echo N > /sys/class/net/NAME/netdev_group; else ip link set NAME group N
//
// Netlink tells all of the kernel that the link changed, at which IPv6, if the
// link has it, walks all of the node's IPv6 routes (rt6_sync_up: 0.7 ms at
// 10,000); a write to sysfs does not. Whatever comes in its way (sysfs shows
// another network namespace, is not mounted, or read-only), netlink has the
// last word.
func (c *Conn) Regroup(group uint32, names ...string) []error {
	errs := make([]error, len(names))
	var rs []Request
	var of []int // which name each request is for
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
	if strings.Contains(name, "/") { // no link's name; netlink says so
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

// sysfsWaits reports whether this kernel waits in line for the lock of all
// links when sysfs is written to (Linux 6.15). Earlier ones try it again and
// again, which never succeeds while many others are in line.
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
