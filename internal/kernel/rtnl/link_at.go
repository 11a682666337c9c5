package rtnl

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// AddAltName gives a link, found by its name, a second name, by which GetAltLink finds it.
// The second name stays when somebody renames the link. If any link has that name already
// the error is kernel.ErrExists; before Linux 5.5 the error is kernel.ErrUnsupported. The kernel tells
// nobody of the second name as long as the link is down.
//
//	ip link property add dev NAME altname ALT
func AddAltName(name, alt string) Request {
	return addAltName(nl.NewIfInfomsg(unix.AF_UNSPEC), name, alt, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
}

// AddAltNameAt is AddAltName for a link that is found by its index, whatever its name is.
//
//	ip link property add dev DEV altname ALT
func AddAltNameAt(index int, alt string) Request {
	return addAltName(at(index), fmt.Sprint(index), alt)
}

func addAltName(msg *nl.IfInfomsg, what, alt string, parts ...nl.NetlinkRequestData) Request {
	list := nl.NewRtAttr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil)
	list.AddRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(alt))
	return Request{
		text:  "ip link property add dev " + what + " altname " + alt,
		typ:   unix.RTM_NEWLINKPROP,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_APPEND,
		body:  body(append(append([]nl.NetlinkRequestData{msg}, parts...), list)...),
	}
}

// GetAltLink is GetLink for a link that is found by its second name (see AddAltName).
//
//	ip link show ALT
func GetAltLink(alt string, link *Link) Request {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	return getLink(msg, alt, link, nl.NewRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(alt)))
}

// GetLinkAt is GetLink for a link that is found by its index, whatever its name is.
//
//	ip link show DEV
func GetLinkAt(index int, link *Link) Request { return getLink(at(index), fmt.Sprint(index), link) }

// SetLinkAt is SetLink for a link that is found by its index, whatever its name is.
//
//	ip link set DEV ...
func SetLinkAt(index int, settings ...Setting) Request {
	return setLink(at(index), fmt.Sprint(index), settings)
}

// DelLinkAt is DelLink for a link that is found by its index, whatever its name is.
//
//	ip link del DEV
func DelLinkAt(index int) Request {
	return Request{text: fmt.Sprint("ip link del ", index), typ: unix.RTM_DELLINK, body: body(at(index))}
}

// Rename renames a link, found by its index. If the name is taken the error is
// kernel.ErrExists. Before Linux 6.2 the error is kernel.ErrBusy if the link is up.
//
//	ip link set DEV name NAME
func Rename(index int, name string) Request {
	return Request{
		text: fmt.Sprintf("ip link set %d name %s", index, name),
		typ:  unix.RTM_SETLINK,
		body: body(at(index), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))),
	}
}

// Indices lists the indices of all links of the Conn's network namespace. It asks for their statistics, whose
// messages are short: nobody can make the list of links itself unreadable for it. If links change meanwhile the error
// may be kernel.ErrInterrupted, and an index may be missing or come twice.
//
//	ip stats show group link
func (c *Conn) Indices() ([]int, error) {
	const size = 12 // struct if_stats_msg: family, three bytes of padding, index, which statistics
	msg := make([]byte, size)
	msg[8] = 1 // IFLA_STATS_LINK_64
	r := Request{text: "ip stats show group link", typ: unix.RTM_GETSTATS, body: msg}
	return dump(c, r, func(b []byte) (int, bool, error) {
		if len(b) < size {
			return 0, false, fmt.Errorf("netlink message of %d bytes, less than %d", len(b), size)
		}
		return int(uint32Of(b[4:])), true, nil
	})
}

func at(index int) *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	return msg
}

// Names returns the names of the links with the given indices, in their order; "" for an
// index that no link has. It takes 1 µs for each index, and no lock that anybody waits for
// (SIOCGIFNAME, netdevice(7)).
//
// The opposite, to ask for the index of a name that may not exist, is expensive: the kernel
// runs modprobe (dev_load, net/core/dev_ioctl.c).
func (c *Conn) Names(indices ...int) ([]string, error) {
	names := make([]string, len(indices))
	var failed error
	broken := c.with(func(s *socket) error {
		for i, index := range indices {
			// struct ifreq: a name, and a union of 24 bytes that begins with the index.
			request := struct {
				name  [unix.IFNAMSIZ]byte
				index int32
				_     [20]byte
			}{index: int32(index)}
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.Fd()), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&request)))
			switch errno {
			case 0:
				names[i] = unix.ByteSliceToString(request.name[:])
			case unix.ENODEV:
			default:
				failed = fmt.Errorf("name of link %d: %w", index, os.NewSyscallError("ioctl", errno))
			}
		}
		return nil
	})
	if err := errors.Join(failed, broken); err != nil {
		return nil, kernel.Classify(err)
	}
	return names, nil
}
