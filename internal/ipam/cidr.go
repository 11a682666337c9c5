package ipam

import (
	"encoding/binary"
	"math"
	"net/netip"
)

// cidr is one CIDR of a space. It names each of its addresses by the offset from its first address.
type cidr struct {
	prefix      netip.Prefix
	is4         bool
	hi, lo      uint64 // the two halves of the prefix's first address, as 16 bytes
	first, last uint64 // the offsets that can be given out, both included
	fresh       uint64 // offsets from here on were never given out, unless index has them
	index       index  // finds the slot, in the space, of an offset
	used        int
	resting     int
	due         int

	pool  *pool
	space *space
	pos   uint32 // in space.cidrs
}

func newCIDR(p netip.Prefix) *cidr {
	c := &cidr{prefix: p, is4: p.Addr().Is4(), index: make(index)}
	c.hi, c.lo = halves(p.Addr())
	c.first, c.last = usable(p)
	c.fresh = c.first
	return c
}

// usable returns the first and the last offset in p that can be given to a pod. Pods have
// /32 and /128 addresses, so that every address would work. But usable leaves out the
// network's own address, which in IPv6 is the subnet-router anycast address (RFC 4291,
// 2.6.1), and the broadcast address of IPv4. A CIDR of one or two addresses has neither
// (RFC 3021, RFC 6164). In an IPv6 CIDR of /64 or larger it uses only the first /64, without its
// last address.
func usable(p netip.Prefix) (first, last uint64) {
	host := p.Addr().BitLen() - p.Bits()
	switch {
	case host <= 1:
		return 0, uint64(host)
	case host >= 64:
		return 1, math.MaxUint64 - 1
	case p.Addr().Is4():
		return 1, 1<<host - 2
	default:
		return 1, 1<<host - 1
	}
}

// size returns how many addresses can be given out, including those in use.
func (c *cidr) size() uint64 { return c.last - c.first + 1 }

// offset returns the offset of a in c, which contains it; false if a is an address that c
// does not give out.
func (c *cidr) offset(a netip.Addr) (uint64, bool) {
	hi, lo := halves(a)
	off := lo - c.lo
	return off, hi == c.hi && off >= c.first && off <= c.last
}

// addr is the inverse of offset.
func (c *cidr) addr(off uint64) netip.Addr {
	if c.is4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(c.lo+off))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], c.hi)
	binary.BigEndian.PutUint64(b[8:], c.lo+off)
	return netip.AddrFrom16(b)
}

func halves(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}
