package main

import (
	"encoding/binary"
	"fmt"
	"strings"

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

// maxAlias is how many bytes a link's alias has at most (IFALIASZ - 1).
const maxAlias = 255

// isStampedElse reports whether a link says by its alias (attachment.Alias) that
// it is another attachment's: a prevResult can be wrong, and who is named by
// mistake must stay connected. One that says nothing, or is gone, does not.
func isStampedElse(link, key string) (bool, error) {
	alias, err := aliasOf(link)
	if err != nil && err != unix.ENODEV {
		return false, fmt.Errorf("asking for the alias of link %s: %w", link, err)
	}
	words := strings.SplitN(alias, " ", 3)
	if len(words) != 3 || words[0] != "berth" {
		return false, nil
	}
	own := fmt.Sprintf("berth %s %s %s", words[1], link[1+prefixLen:], key)
	return alias != own[:min(len(own), maxAlias)], nil
}

// aliasOf is `ip link show LINK`, of which it returns the alias.
func aliasOf(link string) (string, error) {
	var buf [16 << 10]byte
	answer, err := ask(message(link, unix.RTM_GETLINK, unix.NLM_F_REQUEST, 0), buf[:])
	if err != nil {
		return "", err
	}
	order := binary.NativeEndian
	if len(answer) < unix.SizeofNlMsghdr || order.Uint16(answer[4:]) != unix.RTM_NEWLINK {
		return "", parseAnswer(answer)
	}
	// struct rtattr, each at a multiple of 4 bytes
	for at := unix.SizeofNlMsghdr + unix.SizeofIfInfomsg; at+unix.SizeofRtAttr <= len(answer); {
		size := int(order.Uint16(answer[at:]))
		if size < unix.SizeofRtAttr || at+size > len(answer) {
			break
		}
		if order.Uint16(answer[at+2:]) == unix.IFLA_IFALIAS {
			return unix.ByteSliceToString(answer[at+unix.SizeofRtAttr : at+size]), nil
		}
		at += (size + 3) &^ 3
	}
	return "", nil
}

// setDown is `ip link set LINK down`: one message, without asking for the
// link's index first, since the name says who is meant (rtnetlink(7)).
func setDown(link string) error {
	var buf [4096]byte
	answer, err := ask(message(link, unix.RTM_SETLINK, unix.NLM_F_REQUEST|unix.NLM_F_ACK, unix.IFF_UP), buf[:])
	if err != nil {
		return err
	}
	return parseAnswer(answer)
}

// ask sends a message to the kernel and returns its answer, which is in buf.
func ask(message, buf []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// The kernel has done it, and answered, when sendto returns; so nobody waits.
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return buf[:max(n, 0)], err
		}
	}
}

// message is a message about a link of that name, which clears the flags that
// change has.
func message(link string, typ, flags uint16, change uint32) []byte {
	order := binary.NativeEndian
	name := append([]byte(link), 0)
	attr := unix.SizeofRtAttr + len(name)
	size := unix.SizeofNlMsghdr + unix.SizeofIfInfomsg + (attr+3)&^3
	b := make([]byte, 0, size)
	// struct nlmsghdr
	b = order.AppendUint32(b, uint32(size))
	b = order.AppendUint16(b, typ)
	b = order.AppendUint16(b, flags)
	b = order.AppendUint32(b, 1) // sequence
	b = order.AppendUint32(b, 0) // port: the kernel's
	// struct ifinfomsg
	b = append(b, unix.AF_UNSPEC, 0)
	b = order.AppendUint16(b, 0) // type
	b = order.AppendUint32(b, 0) // index: by name
	b = order.AppendUint32(b, 0) // flags
	b = order.AppendUint32(b, change)
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
