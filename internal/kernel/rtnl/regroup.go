package rtnl

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Regroup moves links, found by their indices, to a group, and returns one answer for each
// link. If there is no such link the answer is kernel.ErrNotFound. The links' names only save time:
// Regroup moves a link that has another name by now all the same, and leaves alone another link that
// has got the link's name.
//
//	echo N > /sys/class/net/NAME/netdev_group; else ip link set DEV group N
//
// Regroup writes to sysfs, because a change by netlink notifies the whole kernel, and IPv6
// then walks all of the node's IPv6 routes, if the link has IPv6 (rt6_sync_up: 0.7 ms at
// 10,000 routes). If the write fails (sysfs is not mounted, is read-only, or shows
// another network namespace), Regroup uses netlink, and returns netlink's answer.
func (c *Conn) Regroup(group uint32, links ...Link) []error {
	errs := make([]error, len(links))
	var rs []Request
	var of []int // for each request the index of its link
	for i, l := range links {
		if c.at != nil || !sysfsWaits() || writeGroup(l, group) != nil {
			rs, of = append(rs, SetLinkAt(l.Index, Group(group))), append(of, i)
		}
	}
	for i, err := range c.Each(rs...) {
		errs[of[i]] = err
	}
	return errs
}

// writeGroup changes a link's group by way of sysfs. It opens the folder that has the link's
// name, and changes nothing unless that folder's link has the link's index. An open folder stays the
// folder of the same link, whoever renames links meanwhile.
func writeGroup(l Link, group uint32) error {
	if strings.Contains(l.Name, "/") { // no link can have such a name
		return unix.EINVAL
	}
	dir, err := unix.Open("/sys/class/net/"+l.Name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(dir)
	var index [16]byte
	n, err := throughFile(dir, "ifindex", unix.O_RDONLY, func(fd int) (int, error) { return unix.Read(fd, index[:]) })
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(index[:n])) != strconv.Itoa(l.Index) {
		return unix.ENODEV
	}
	_, err = throughFile(dir, "netdev_group", unix.O_WRONLY, func(fd int) (int, error) {
		return unix.Write(fd, strconv.AppendUint(nil, uint64(group), 10))
	})
	return err
}

// throughFile opens a file of a folder, and repeats a call while signals interrupt it.
func throughFile(dir int, name string, flags int, call func(fd int) (int, error)) (int, error) {
	fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	for {
		n, err := call(fd)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// sysfsWaits reports whether a write to sysfs waits in line for the lock of all links
// (RTNL), as it does since Linux 6.15. Earlier kernels only try the lock again and again, and such a
// write never gets the lock while many others wait in line.
var sysfsWaits = sync.OnceValue(func() bool {
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return false
	}
	return atLeast(unix.ByteSliceToString(uts.Release[:]), 6, 15)
})

// atLeast reports whether a kernel's release, such as "6.18.4-amd64", is the version major.minor or a
// later version.
func atLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a > major || a == major && b >= minor
}
