package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// device names a link of the calling thread's network namespace: by its name, by its altname
// or, without either, by its index.
type device struct {
	name, altname string
	index         uint32
}

// answer is what the kernel says of a link: a message of RTM_NEWLINK; nil says nothing.
type answer []byte

// look asks the kernel for a link, as `ip link show` does.
func look(d device) (answer, error) {
	var buf [16 << 10]byte
	got, err := ask(message(d, unix.RTM_GETLINK, unix.NLM_F_REQUEST, 0), buf[:])
	if err != nil {
		return nil, err
	}
	if len(got) < unix.SizeofNlMsghdr || binary.NativeEndian.Uint16(got[4:]) != unix.RTM_NEWLINK {
		return nil, parseAnswer(got)
	}
	return got, nil
}

// attribute returns an attribute's value; nil if the link has none.
func (a answer) attribute(typ uint16) []byte {
	return attributeIn(a, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg, typ)
}

// attributeIn returns the value of an attribute of a message whose attributes begin at byte `at`;
// nil if the message does not have the attribute.
func attributeIn(m []byte, at int, typ uint16) []byte {
	order := binary.NativeEndian
	// struct rtattr, each at a multiple of 4 bytes
	for at+unix.SizeofRtAttr <= len(m) {
		size := int(order.Uint16(m[at:]))
		if size < unix.SizeofRtAttr || at+size > len(m) {
			break
		}
		if order.Uint16(m[at+2:]) == typ {
			return m[at+unix.SizeofRtAttr : at+size]
		}
		at += (size + 3) &^ 3
	}
	return nil
}

// index returns the link's index.
func (a answer) index() uint32 {
	if len(a) < unix.SizeofNlMsghdr+unix.SizeofIfInfomsg {
		return 0
	}
	return binary.NativeEndian.Uint32(a[unix.SizeofNlMsghdr+4:]) // struct ifinfomsg
}

// flags returns the link's flags.
func (a answer) flags() uint32 {
	if len(a) < unix.SizeofNlMsghdr+unix.SizeofIfInfomsg {
		return 0
	}
	return binary.NativeEndian.Uint32(a[unix.SizeofNlMsghdr+8:]) // struct ifinfomsg
}

// text returns an attribute that is a string, up to its NUL.
func (a answer) text(typ uint16) string { return unix.ByteSliceToString(a.attribute(typ)) }

// number returns an attribute of 32 bits; 0 if the link has none.
func (a answer) number(typ uint16) uint32 {
	value := a.attribute(typ)
	if len(value) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// setDown does `ip link set LINK down` by the link's index. It does not use the name, because
// another link may have the name by now, after the caller has found out which pod's link it is.
func setDown(index uint32) error { return tell(index, unix.RTM_SETLINK, unix.IFF_UP) }

// deleteHere does `ip link del LINK` by the link's index. It may not return (deleteLink).
func deleteHere(index uint32) error { return tell(index, unix.RTM_DELLINK, 0) }

// tell sends the kernel a message about a link, and returns what the kernel acknowledges. change
// are the flags that the message clears.
func tell(index uint32, typ uint16, change uint32) error {
	var buf [4096]byte
	answer, err := ask(message(device{index: index}, typ, unix.NLM_F_REQUEST|unix.NLM_F_ACK, change), buf[:])
	if err != nil {
		return err
	}
	return parseAnswer(answer)
}

// kernel returns the kernel's address, for one call: x/sys writes into the address.
func kernel() *unix.SockaddrNetlink { return &unix.SockaddrNetlink{Family: unix.AF_NETLINK} }

// open opens a socket that is connected to the kernel. Nobody but the kernel can send messages to
// such a socket (netlink_getsockbyportid): otherwise a pod could fill the plugin's sockets in the
// pod's namespace.
func open() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, kernel()); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ask sends a message to the kernel and returns the kernel's answer, which is in buf.
func ask(message, buf []byte) ([]byte, error) {
	fd, err := open()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return exchange(fd, message, buf)
}

// errLost says that the socket had no room for the kernel's only answer: others in the network
// namespace have filled it.
var errLost = errors.New("the kernel's answer is lost")

// exchange is ask with a given socket. Until the socket is connected, every process with
// CAP_NET_ADMIN in the network namespace can write to the socket, and a pod may have that right in
// the pod's namespace. exchange skips all messages but the kernel's, whose port is 0.
func exchange(fd int, message, buf []byte) ([]byte, error) {
	// The kernel has done what the message says, and has answered, when sendto returns. So
	// exchange does not wait.
	if err := unix.Sendto(fd, message, 0, kernel()); err != nil {
		return nil, err
	}
	return receive(fd, buf)
}

// receive returns what the kernel has answered, and does not wait for it.
func receive(fd int, buf []byte) ([]byte, error) {
	for {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ENOBUFS || err == unix.EAGAIN:
			return nil, errLost
		case err != nil:
			return nil, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
			return buf[:n], nil
		}
	}
}

// links calls see with each link of the calling thread's network namespace, as `ip link show`
// lists them, until see returns false. If links returns an error, it may not have called see
// with all links.
func links(see func(answer) bool) error {
	order := binary.NativeEndian
	m := message(device{}, unix.RTM_GETLINK, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 0)
	m = order.AppendUint16(m, unix.SizeofRtAttr+4)
	m = order.AppendUint16(m, unix.IFLA_EXT_MASK)
	m = order.AppendUint32(m, skipStats)
	order.PutUint32(m, uint32(len(m)))
	return dump(m, unix.RTM_NEWLINK, func(part []byte) bool { return see(answer(part)) })
}

// dump sends the kernel the request m, and calls see with each message of a type in the kernel's
// answer, until see returns false. If dump returns an error, it may not have called see with all of
// these messages.
func dump(m []byte, typ uint16, see func([]byte) bool) error {
	order := binary.NativeEndian
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var buf [32 << 10]byte
	part, err := exchange(fd, m, buf[:])
	for ; err == nil; part, err = receive(fd, buf[:]) {
		for len(part) > 0 {
			if len(part) < unix.SizeofNlMsghdr {
				return errPart
			}
			size := int(order.Uint32(part))
			if size < unix.SizeofNlMsghdr || size > len(part) || order.Uint16(part[6:])&unix.NLM_F_DUMP_INTR != 0 {
				return errPart
			}
			switch order.Uint16(part[4:]) {
			case unix.NLMSG_DONE:
				if size < unix.SizeofNlMsghdr+4 || order.Uint32(part[unix.SizeofNlMsghdr:]) != 0 {
					return errPart
				}
				return nil
			case typ:
				if !see(part[:size]) {
					return nil
				}
			default:
				return errPart
			}
			part = part[min((size+3)&^3, len(part)):]
		}
	}
	return err
}

// skipStats is RTEXT_FILTER_SKIP_STATS of include/uapi/linux/rtnetlink.h.
const skipStats = 1 << 3

// errPart says that the kernel has not listed all, as when links changed meanwhile.
var errPart = errors.New("the kernel's list is not whole")

// message returns a message about a link. The message clears those flags of the link that change has.
func message(d device, typ, flags uint16, change uint32) []byte {
	order := binary.NativeEndian
	// struct nlmsghdr
	b := order.AppendUint32(make([]byte, 0, 64), 0) // length: set below
	b = order.AppendUint16(b, typ)
	b = order.AppendUint16(b, flags)
	b = order.AppendUint32(b, 1) // sequence
	b = order.AppendUint32(b, 0) // port: the kernel's
	// struct ifinfomsg
	b = append(b, unix.AF_UNSPEC, 0)
	b = order.AppendUint16(b, 0) // type
	b = order.AppendUint32(b, d.index)
	b = order.AppendUint32(b, 0) // flags
	b = order.AppendUint32(b, change)
	b = attribute(b, unix.IFLA_IFNAME, d.name)
	b = attribute(b, unix.IFLA_ALT_IFNAME, d.altname)
	order.PutUint32(b, uint32(len(b)))
	return b
}

// attribute appends a struct rtattr with a string, unless the string is empty.
func attribute(b []byte, typ uint16, text string) []byte {
	if text == "" {
		return b
	}
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(text)+1))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(append(b, text...), 0)
	for len(b)%4 > 0 {
		b = append(b, 0)
	}
	return b
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
