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
	msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	msg.Index = uint32(index) // a filter, for a strict socket
	r := Request{text: fmt.Sprint("ip addr show dev ", index), typ: unix.RTM_GETADDR, body: body(msg)}
	return dump(c, r, func(b []byte) (Address, bool, error) {
		var a Address
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
			return a, false, err
		}
		if !local.IsValid() {
			local = address
		}
		m := nl.DeserializeIfAddrmsg(b)
		a = Address{netip.PrefixFrom(local, int(m.Prefixlen)), int(m.Index)}
		return a, a.Index == index, nil
	})
}
