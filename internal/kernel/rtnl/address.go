package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// Address is an address of a link.
type Address struct {
	Prefix netip.Prefix // the address with its prefix's length
	Index  int          // of the link
}

// AddAddress adds an address without duplicate address detection, so that the address works at once,
// without a lifetime, and without a route to its prefix. If the link has the address already the error
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

// EachAddress calls each for a link's addresses of one family, IPv6 or IPv4. If the addresses change
// meanwhile, EachAddress may call each twice for an address. An error of each ends the list, and
// EachAddress returns the error; for ErrStop it returns nil.
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
	msg.Index = uint32(index) // the kernel filters by the index, because the socket asks for strict checks
	return Request{text: fmt.Sprint("ip addr show dev ", index), typ: unix.RTM_GETADDR, body: body(msg)}
}

// GetAddress6 looks up an IPv6 address on a link and reads it into a. GetAddress6 costs one look-up,
// however many addresses the link has. If the link does not have the address the error is
// kernel.ErrNotFound. The kernel has no such request for IPv4.
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
		case unix.IFA_LOCAL: // on a point-to-point link IFA_ADDRESS is the peer's; IPv6 mostly has no IFA_LOCAL
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

// DelAddress deletes an address. If the link does not have the address the error is kernel.ErrNotFound.
//
//	ip addr del PREFIX dev DEV
func DelAddress(a Address) Request {
	msg := nl.NewIfAddrmsg(family(a.Prefix.Addr()))
	msg.Prefixlen = uint8(a.Prefix.Bits())
	msg.Index = uint32(a.Index)
	return Request{
		text: fmt.Sprintf("ip addr del %s dev %d", a.Prefix, a.Index),
		typ:  unix.RTM_DELADDR,
		body: body(msg, nl.NewRtAttr(unix.IFA_LOCAL, a.Prefix.Addr().AsSlice())),
	}
}

// HostAddresses returns a link's addresses in order, but those that the kernel makes by itself.
//
//	ip addr show dev DEV
func (c *Conn) HostAddresses(index int) (addrs []netip.Addr, err error) {
	all, err := c.Addresses(index)
	for _, a := range all {
		if addr := a.Prefix.Addr(); !addr.IsLinkLocalUnicast() {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, err
}

// SetHostAddresses gives a link the addresses of `want`, each as a network of its own, and takes all others that HostAddresses
// returns.
//
//	ip addr add ADDR dev DEV; ip addr del ADDR dev DEV
func (c *Conn) SetHostAddresses(index int, want []netip.Addr) error {
	has, err := c.HostAddresses(index)
	if err != nil {
		return err
	}
	for _, a := range want {
		err := c.Do(AddAddress(Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Index: index}))
		if err != nil && !errors.Is(err, kernel.ErrExists) {
			return err
		}
	}
	for _, a := range has {
		if slices.Contains(want, a) {
			continue
		}
		err := c.Do(DelAddress(Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Index: index}))
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return err
		}
	}
	return nil
}
