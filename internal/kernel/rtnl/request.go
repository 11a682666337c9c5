package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Request is one question or one change, to be sent by a Conn any number of times.
type Request struct {
	text   string // the ip command that does the same
	typ    uint16 // RTM_*
	flags  uint16 // NLM_F_*, without REQUEST, ACK and DUMP
	body   []byte
	answer func(body []byte) error // reads the kernel's answer to a question; nil: there is no answer to read
}

// String returns the ip command that does the same.
func (r Request) String() string { return r.text }

// answersLong reports whether the kernel's answers may be longer than nlsock.BufferSize.
func (r Request) answersLong() bool { return r.typ == unix.RTM_GETLINK }

// body puts a message's parts together: its fixed header, then attributes.
func body(parts ...nl.NetlinkRequestData) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p.Serialize()...)
	}
	return b
}

// attributes calls f for each attribute in b, which begins after a message's
// fixed header of the given size.
func attributes(b []byte, header int, f func(typ uint16, value []byte)) error {
	if len(b) < header {
		return fmt.Errorf("netlink message of %d bytes, less than %d", len(b), header)
	}
	for b = b[header:]; len(b) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return fmt.Errorf("netlink attribute of %d bytes in %d", size, len(b))
		}
		f(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[unix.SizeofRtAttr:size])
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// uint32Of reads a 4-byte attribute. It returns 0 for a shorter attribute.
func uint32Of(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// family returns the address family of an address.
func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// parseError reads an NLMSG_ERROR or NLMSG_DONE. It returns nil for success, else the
// errno, with the kernel's own words if it sent any.
func parseError(m syscall.NetlinkMessage) error {
	code := -int32(uint32Of(m.Data))
	if code == 0 {
		return nil
	}
	errno := unix.Errno(code)
	words := ""
	if m.Header.Flags&unix.NLM_F_ACK_TLVS != 0 {
		header := 4 + unix.SizeofNlMsghdr // nlmsgerr, its request cut short by NETLINK_CAP_ACK
		if m.Header.Type == unix.NLMSG_DONE {
			header = 4
		}
		// If parseError cannot read the words, the errno alone is the error.
		_ = attributes(m.Data, header, func(typ uint16, value []byte) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				words = unix.ByteSliceToString(value)
			}
		})
	}
	if words == "" {
		return errno
	}
	return fmt.Errorf("%w (%s)", errno, words)
}
