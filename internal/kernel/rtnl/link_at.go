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

// AddAltName gives a link, found by its name, one more name, by which
// GetAltLink finds it: that stays when somebody renames the link. One that is
// taken, by whatever link, is kernel.ErrExists; before Linux 5.5 it is
// kernel.ErrUnsupported. Nobody is told of it as long as the link is down.
//
//	ip link property add dev NAME altname ALT
func AddAltName(name, alt string) Request {
	list := nl.NewRtAttr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil)
	list.AddRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(alt))
	return Request{
		text:  "ip link property add dev " + name + " altname " + alt,
		typ:   unix.RTM_NEWLINKPROP,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_APPEND,
		body: body(nl.NewIfInfomsg(unix.AF_UNSPEC),
			nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)), list),
	}
}

// GetAltLink is GetLink by a name that AddAltName gave.
//
//	ip link show ALT
func GetAltLink(alt string, link *Link) Request {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	return getLink(msg, alt, link, nl.NewRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(alt)))
}

// GetLinkAt is GetLink by the link's index: it may have any name.
//
//	ip link show DEV
func GetLinkAt(index int, link *Link) Request { return getLink(at(index), fmt.Sprint(index), link) }

// SetLinkAt is SetLink by the link's index: it may have any name.
//
//	ip link set DEV ...
func SetLinkAt(index int, settings ...Setting) Request {
	return setLink(at(index), fmt.Sprint(index), settings)
}

// DelLinkAt is DelLink by the link's index: it may have any name.
//
//	ip link del DEV
func DelLinkAt(index int) Request {
	return Request{text: fmt.Sprint("ip link del ", index), typ: unix.RTM_DELLINK, body: body(at(index))}
}

// Rename gives a link, found by its index, a name. Before Linux 6.2 one that is
// up is kernel.ErrBusy; a name that is taken is kernel.ErrExists.
//
//	ip link set DEV name NAME
func Rename(index int, name string) Request {
	return Request{
		text: fmt.Sprintf("ip link set %d name %s", index, name),
		typ:  unix.RTM_SETLINK,
		body: body(at(index), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))),
	}
}

func at(index int) *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	return msg
}

// Names returns what the links that have some indices are called; "" where there
// is none. It takes 1 µs a link, and no lock that anybody waits for (SIOCGIFNAME,
// netdevice(7)).
//
// To ask the other way round, by a name that may not be there, is dear: the
// kernel runs modprobe (dev_load, net/core/dev_ioctl.c).
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
