package main

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/root"
)

// prefixLen is how many characters of an instance's id the names of its links
// have, behind their b.
const prefixLen = 4

// cut sets a host veth down, and so cuts its pod off. A link that is gone is as
// good.
func cut(link string) error {
	if err := setDown(link); err != nil && err != unix.ENODEV {
		return fmt.Errorf("setting link %s down: %w", link, err)
	}
	return nil
}

// isOf reports whether a link with the form of Berth's is of the instance that
// lives at a root. Where that cannot be known, the form decides: 14 characters
// in an alphabet of 32 are nobody else's by chance.
func isOf(dir root.Dir, link string) bool {
	instance, err := readShort(dir.Instance())
	if err != nil || len(instance) < prefixLen {
		return true
	}
	return link[1:1+prefixLen] == instance[:prefixLen]
}

// setDown is `ip link set LINK down`: one message, without asking for the
// link's index first, since the name says who is meant (rtnetlink(7)).
func setDown(link string) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The kernel has done it, and answered, when sendto returns; so nobody waits.
	if err := unix.Sendto(fd, downMessage(link), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var answer [4096]byte
	for {
		n, _, err := unix.Recvfrom(fd, answer[:], unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			if err != nil {
				return err
			}
			return parseAnswer(answer[:n])
		}
	}
}

// downMessage is RTM_SETLINK by name, with IFF_UP cleared.
func downMessage(link string) []byte {
	order := binary.NativeEndian
	name := append([]byte(link), 0)
	attr := unix.SizeofRtAttr + len(name)
	size := unix.SizeofNlMsghdr + unix.SizeofIfInfomsg + (attr+3)&^3
	b := make([]byte, 0, size)
	// struct nlmsghdr
	b = order.AppendUint32(b, uint32(size))
	b = order.AppendUint16(b, unix.RTM_SETLINK)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = order.AppendUint32(b, 1) // sequence
	b = order.AppendUint32(b, 0) // port: the kernel's
	// struct ifinfomsg
	b = append(b, unix.AF_UNSPEC, 0)
	b = order.AppendUint16(b, 0)           // type
	b = order.AppendUint32(b, 0)           // index: by name
	b = order.AppendUint32(b, 0)           // flags
	b = order.AppendUint32(b, unix.IFF_UP) // which of them
	// struct rtattr
	b = order.AppendUint16(b, uint16(attr))
	b = order.AppendUint16(b, unix.IFLA_IFNAME)
	return append(b, name...)[:size]
}

// parseAnswer returns what a struct nlmsgerr says: nothing, or an errno.
func parseAnswer(answer []byte) error {
	order := binary.NativeEndian
	if len(answer) < unix.SizeofNlMsghdr+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("the kernel answers %.32q", answer)
	}
	if errno := -int32(order.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}
