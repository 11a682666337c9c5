package nft

import (
	"bytes"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// span is a range of addresses of one family, from first to last, both included.
type span struct{ first, last netip.Addr }

// String shows the span as nft does: as a CIDR if the span is a CIDR.
func (s span) String() string {
	if s.first == s.last {
		return s.first.String()
	}
	for bits := range s.first.BitLen() {
		p := netip.PrefixFrom(s.first, bits)
		if p.Masked() == p && last(p) == s.last {
			return p.String()
		}
	}
	return fmt.Sprintf("%s-%s", s.first, s.last)
}

// spans returns prefixes of each family as spans, in their order. The prefixes must not overlap (cidrs.Set.Widest), because the
// kernel refuses an interval set whose members overlap. Spans that touch stay apart, so that a prefix that comes or goes is one
// span more or less, whatever lies beside it.
func spans(prefixes iter.Seq[netip.Prefix]) (v4, v6 []span) {
	for p := range prefixes {
		s := span{p.Addr(), last(p)}
		if p.Addr().Is4() {
			v4 = append(v4, s)
		} else {
			v6 = append(v6, s)
		}
	}
	return v4, v6
}

// last returns the last address of a masked prefix.
func last(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for i := p.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 1 << (7 - i%8)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}

// elements returns the spans as members of an interval set. A span is two members: its
// first address, and an end element at the address after its last one. A span that ends
// with the family's last address has no end element.
func elements(spans []span) []nftables.SetElement {
	var members []nftables.SetElement
	for _, s := range spans {
		members = append(members, nftables.SetElement{Key: s.first.AsSlice()})
		if after := s.last.Next(); after.IsValid() {
			members = append(members, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	return members
}

// spansOf is the inverse of elements, for members in any order. It leaves out members
// whose key is no address.
func spansOf(members []nftables.SetElement) []span {
	slices.SortFunc(members, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.IntervalEnd == b.IntervalEnd {
			return c
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	var (
		spans []span
		open  netip.Addr
	)
	for _, m := range members {
		at, ok := netip.AddrFromSlice(m.Key)
		if !ok {
			continue
		}
		if open.IsValid() {
			spans = append(spans, span{open, at.Prev()})
		}
		open = netip.Addr{}
		if !m.IntervalEnd {
			open = at
		}
	}
	if open.IsValid() {
		end := last(netip.PrefixFrom(open, 0).Masked())
		spans = append(spans, span{open, end})
	}
	return spans
}
