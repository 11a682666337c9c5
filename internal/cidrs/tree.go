package cidrs

import (
	"math/bits"
	"net/netip"
)

// node is a node of a binary tree of CIDRs of one family, in which each node has what is within its CIDR. Which nodes there are follows
// from the CIDRs alone, in whatever order they came. Nobody changes a node: the nodes on the way to a change are made anew.
type node struct {
	cidr  netip.Prefix // masked
	count int          // how often the CIDR was added; 0: the node only joins its two children
	child [2]*node     // by the bit behind the CIDR
}

// within reports whether a CIDR is in another one, or is the same.
func within(p, in netip.Prefix) bool { return in.Bits() <= p.Bits() && in.Contains(p.Addr()) }

// side returns the bit of a CIDR at a place, counted from its first bit.
func side(p netip.Prefix, at int) int {
	if p.Addr().Is4() {
		at += 96 // As16 puts IPv4 addresses at its end
	}
	raw := p.Addr().As16()
	return int(raw[at/8]>>(7-at%8)) & 1
}

// join returns the narrowest CIDR that has two others.
func join(p, q netip.Prefix) netip.Prefix {
	a, b := p.Addr().As16(), q.Addr().As16()
	same := 0
	for i := range a {
		if differ := bits.LeadingZeros8(a[i] ^ b[i]); differ < 8 {
			same += differ
			break
		}
		same += 8
	}
	if p.Addr().Is4() {
		same -= 96
	}
	return netip.PrefixFrom(p.Addr(), min(same, p.Bits(), q.Bits())).Masked()
}

// has reports whether the node's own CIDR is in the set.
func (n *node) has() bool { return n.count > 0 }

func (n *node) with(p netip.Prefix) *node {
	if n == nil {
		return &node{cidr: p, count: 1}
	}
	made := *n
	if !within(p, n.cidr) {
		made = node{cidr: join(p, n.cidr)}
		made.child[side(n.cidr, made.cidr.Bits())] = n
	}
	if made.cidr == p {
		made.count++
	} else {
		to := &made.child[side(p, made.cidr.Bits())]
		*to = (*to).with(p)
	}
	return &made
}

func (n *node) without(p netip.Prefix) *node {
	if n == nil || !within(p, n.cidr) {
		return n
	}
	made := *n
	if n.cidr == p {
		made.count = max(n.count-1, 0)
	} else {
		to := &made.child[side(p, n.cidr.Bits())]
		*to = (*to).without(p)
	}
	switch {
	case made == *n:
		return n
	case made.has() || made.child[0] != nil && made.child[1] != nil:
		return &made
	case made.child[0] != nil:
		return made.child[0]
	}
	return made.child[1]
}

// overlapping yields the CIDRs that overlap p. It returns false if yield did.
func (n *node) overlapping(p netip.Prefix, yield func(netip.Prefix) bool) bool {
	switch {
	case n == nil || !n.cidr.Overlaps(p):
		return true
	case n.has() && !yield(n.cidr):
		return false
	case n.cidr.Bits() < p.Bits(): // p is on one side alone
		return n.child[side(p, n.cidr.Bits())].overlapping(p, yield)
	}
	return n.child[0].overlapping(p, yield) && n.child[1].overlapping(p, yield)
}

// widest yields the CIDRs that are in no other one. It returns false if yield did.
func (n *node) widest(yield func(netip.Prefix) bool) bool {
	if n == nil || n.has() {
		return n == nil || yield(n.cidr)
	}
	return n.child[0].widest(yield) && n.child[1].widest(yield)
}

// part returns the part of the tree that is on one side of a CIDR, in which all of the tree is.
func (n *node) part(of netip.Prefix, i int) *node {
	switch {
	case n == nil:
		return nil
	case n.cidr == of:
		return n.child[i]
	case side(n.cidr, of.Bits()) == i:
		return n
	}
	return nil
}

// differ appends to lost those CIDRs of a.widest that b.widest lacks, and to gained those that only b.widest has. It passes over what the
// trees share.
func differ(a, b *node, lost, gained *[]netip.Prefix) {
	if a == b {
		return
	}
	add := func(n *node, to *[]netip.Prefix) {
		n.widest(func(p netip.Prefix) bool { *to = append(*to, p); return true })
	}
	if a == nil || b == nil || a.cidr == b.cidr && a.has() != b.has() || !a.cidr.Overlaps(b.cidr) {
		add(a, lost)
		add(b, gained)
		return
	}
	wider := a
	if b.cidr.Bits() < a.cidr.Bits() {
		wider = b
	}
	switch {
	case a.cidr == b.cidr && a.has():
		return
	case wider.has():
		add(a, lost)
		add(b, gained)
		return
	}
	for i := range 2 {
		differ(a.part(wider.cidr, i), b.part(wider.cidr, i), lost, gained)
	}
}
