package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Address is an address of a link.
type Address struct {
	Prefix netip.Prefix // the address with its prefix's length
	Index  int          // of the link
}

// AddAddress adds an address that can be used at once (no duplicate address
// detection), for ever, and brings no route of its prefix. One that is there
// is kernel.ErrExists.
//
//	ip addr add PREFIX dev DEV nodad noprefixroute
func AddAddress(a Address) Request {
	msg := nl.NewIfAddrmsg(family(a.Prefix.Addr()))
	msg.Prefixlen = uint8(a.Prefix.Bits())
	msg.Index = uint32(a.Index)
	var flags uint32 = unix.IFA_F_NOPREFIXROUTE
	if a.Prefix.Addr().Is6() {
		flags |= unix.IFA_F_NODAD
	}
	raw := a.Prefix.Addr().AsSlice()
	return Request{
		text:  fmt.Sprintf("ip addr add %s dev %d nodad noprefixroute", a.Prefix, a.Index),
		typ:   unix.RTM_NEWADDR,
		flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		body: body(msg,
			nl.NewRtAttr(unix.IFA_LOCAL, raw),
			nl.NewRtAttr(unix.IFA_ADDRESS, raw),
			nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags))),
	}
}

// Addresses lists the addresses of a link, of both families.
//
//	ip addr show dev DEV
func (c *Conn) Addresses(index int) ([]Address, error) {
	return dump(c, addressesOf(index, unix.AF_UNSPEC), func(b []byte) (Address, bool, error) {
		a, err := parseAddress(b)
		return a, err == nil && a.Index == index, err
	})
}

// EachAddress calls each for the addresses of a link, of IPv6 or else of IPv4;
// for some of them twice if they change under way. Its error ends that, and comes
// back, but for ErrStop.
//
//	ip -4|-6 addr show dev DEV
func (c *Conn) EachAddress(index int, ipv6 bool, each func(Address) error) error {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	return c.walk(addressesOf(index, family), func() {}, func(b []byte) error {
		a, err := parseAddress(b)
		if err != nil || a.Index != index {
			return err
		}
		return each(a)
	})
}

func addressesOf(index, family int) Request {
	msg := nl.NewIfAddrmsg(family)
	msg.Index = uint32(index) // a filter, for a strict socket
	return Request{text: fmt.Sprint("ip addr show dev ", index), typ: unix.RTM_GETADDR, body: body(msg)}
}

// GetAddress6 reads an address of IPv6 that a link has into a: one look-up,
// however many there are. None is kernel.ErrNotFound. IPv4 has no such question.
//
//	ip -6 addr show to ADDR dev DEV
func GetAddress6(addr netip.Addr, index int, a *Address) Request {
	msg := nl.NewIfAddrmsg(unix.AF_INET6)
	msg.Index = uint32(index)
	return Request{
		text:   fmt.Sprintf("ip -6 addr show to %s dev %d", addr, index),
		typ:    unix.RTM_GETADDR,
		body:   body(msg, nl.NewRtAttr(unix.IFA_ADDRESS, addr.AsSlice())),
		answer: func(b []byte) (err error) { *a, err = parseAddress(b); return err },
	}
}

// parseAddress reads an RTM_NEWADDR.
func parseAddress(b []byte) (Address, error) {
	var local, address netip.Addr
	err := attributes(b, unix.SizeofIfAddrmsg, func(typ uint16, value []byte) {
		switch typ {
		case unix.IFA_LOCAL: // of a point-to-point link; IPv6 mostly has the other alone
			local, _ = netip.AddrFromSlice(value)
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(value)
		}
	})
	if err != nil {
		return Address{}, err
	}
	if !local.IsValid() {
		local = address
	}
	m := nl.DeserializeIfAddrmsg(b)
	return Address{netip.PrefixFrom(local, int(m.Prefixlen)), int(m.Index)}, nil
}
