package blocks

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// MaxPerCIDR is how many blocks of a CIDR are used, so that a number has room for those of all CIDRs.
const MaxPerCIDR = 1 << 32

// Space numbers the blocks of a list of CIDRs: first those of the first CIDR, by address, and so on. A CIDR that is
// appended changes no number.
type Space struct {
	bits  int // prefix length of a block
	cidrs []cidr
	order []int // indexes of cidrs, by address
}

type cidr struct {
	netip.Prefix
	first, last int64 // numbers
}

// NewSpace returns the space of CIDRs of one family that do not overlap, with blocks of bits.
func NewSpace(cidrs []netip.Prefix, bits int) (Space, error) {
	s := Space{bits: bits}
	next := int64(0)
	for i, p := range cidrs {
		if err := s.fits(p); err != nil {
			return Space{}, err
		}
		n := int64(MaxPerCIDR)
		if host := bits - p.Bits(); host < 32 {
			n = 1 << host
		}
		s.cidrs = append(s.cidrs, cidr{p, next, next + n - 1})
		s.order = append(s.order, i)
		next += n
	}
	slices.SortFunc(s.order, func(a, b int) int { return s.cidrs[a].Addr().Compare(s.cidrs[b].Addr()) })
	return s, nil
}

// fits reports why a CIDR cannot be appended to the space.
func (s Space) fits(p netip.Prefix) error {
	switch {
	case !p.IsValid() || p.Masked() != p:
		return fmt.Errorf("%s is not a CIDR by its first address", p)
	case p.Bits() > s.bits || s.bits > p.Addr().BitLen():
		return fmt.Errorf("%s has no blocks of /%d", p, s.bits)
	}
	for _, other := range s.cidrs {
		if other.Addr().BitLen() != p.Addr().BitLen() {
			return fmt.Errorf("%s and %s are not of one family", p, other.Prefix)
		}
		if other.Overlaps(p) {
			return fmt.Errorf("%s overlaps %s", p, other.Prefix)
		}
	}
	return nil
}

// Total returns how many blocks the space has.
func (s Space) Total() int64 {
	if len(s.cidrs) == 0 {
		return 0
	}
	return s.cidrs[len(s.cidrs)-1].last + 1
}

// Numbers returns the first and the last number of the blocks of the ith CIDR.
func (s Space) Numbers(i int) (first, last int64) { return s.cidrs[i].first, s.cidrs[i].last }

// Number returns the number of a block; false if the space has no such block.
func (s Space) Number(block netip.Prefix) (int64, bool) {
	if block.Bits() != s.bits || !block.IsValid() || block.Masked() != block {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(s.order, block.Addr(), func(i int, a netip.Addr) int { return s.cidrs[i].Addr().Compare(a) })
	if !found {
		i--
	}
	if i < 0 {
		return 0, false
	}
	c := s.cidrs[s.order[i]]
	if !c.Contains(block.Addr()) {
		return 0, false
	}
	n := position(c.Addr(), block.Addr(), s.bits)
	return c.first + int64(n), n <= uint64(c.last-c.first)
}

// Block returns the block of a number below Total.
func (s Space) Block(n int64) netip.Prefix {
	i, _ := slices.BinarySearchFunc(s.cidrs, n, func(c cidr, n int64) int {
		if c.last < n {
			return -1
		}
		return 1
	})
	c := s.cidrs[i]
	return netip.PrefixFrom(advance(c.Addr(), uint64(n-c.first), s.bits), s.bits)
}

// Usable returns how many pods a block has addresses for: internal/ipam gives neither a network's first address, nor the
// last one of IPv4, unless there are only one or two, and of IPv6 no more than a /64 has.
func Usable(bits, family int) int64 {
	host := family - bits
	switch {
	case host <= 1:
		return 1 << host
	case host >= 62:
		return math.MaxInt64
	case family == 32:
		return 1<<host - 2
	default:
		return 1<<host - 1
	}
}

// position returns how many blocks of bits there are from base to a, MaxUint64 if that is more.
func position(base, a netip.Addr, bits int) uint64 {
	if base.Is4() {
		b, at := base.As4(), a.As4()
		return uint64(binary.BigEndian.Uint32(at[:])-binary.BigEndian.Uint32(b[:])) >> (32 - bits)
	}
	b, at := base.As16(), a.As16()
	lo := binary.BigEndian.Uint64(at[8:]) - binary.BigEndian.Uint64(b[8:])
	hi := binary.BigEndian.Uint64(at[:8]) - binary.BigEndian.Uint64(b[:8])
	if binary.BigEndian.Uint64(at[8:]) < binary.BigEndian.Uint64(b[8:]) {
		hi--
	}
	host := 128 - bits
	switch {
	case host >= 64:
		return hi >> (host - 64)
	case hi>>host != 0:
		return math.MaxUint64
	default:
		return hi<<(64-host) | lo>>host // Go shifts 64 bits or more to 0
	}
}

// advance returns the address n blocks of bits after base.
func advance(base netip.Addr, n uint64, bits int) netip.Addr {
	if base.Is4() {
		b := base.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n<<(32-bits)))
		return netip.AddrFrom4(b)
	}
	b := base.As16()
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	if host := 128 - bits; host >= 64 {
		hi += n << (host - 64)
	} else {
		before := lo
		lo += n << host
		hi += n >> (64 - host)
		if lo < before {
			hi++
		}
	}
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}
