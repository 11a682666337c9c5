// Package cidrs keeps sets of CIDRs that change little by little, such as those of a cluster's nodes: one CIDR more or less costs the
// same however many there are.
package cidrs

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
)

// Set is a set of CIDRs of both families, which counts how often each was added. A Set does not change: With and Without return
// other sets, which share nearly all of their memory with it. So two sets of which one has come of the other are compared in no time
// (Differ, reflect.DeepEqual). The zero Set is empty.
type Set struct{ v4, v6 *node }

// Of returns the set of some CIDRs.
func Of(cidrs ...netip.Prefix) Set { return Set{}.With(cidrs...) }

// With returns a set that has further CIDRs. It ignores host bits, and CIDRs that are not valid.
func (s Set) With(cidrs ...netip.Prefix) Set {
	for _, p := range cidrs {
		if p.IsValid() {
			root := s.root(p)
			*root = (*root).with(p.Masked())
		}
	}
	return s
}

// Without returns a set in which each of some CIDRs is once less. A CIDR that the set lacks changes nothing.
func (s Set) Without(cidrs ...netip.Prefix) Set {
	for _, p := range cidrs {
		root := s.root(p)
		*root = (*root).without(p.Masked())
	}
	return s
}

// root returns the tree for the family of a CIDR.
func (s *Set) root(p netip.Prefix) **node {
	if p.Addr().Is4() {
		return &s.v4
	}
	return &s.v6
}

// String lists the CIDRs of Widest.
func (s Set) String() string { return fmt.Sprint(slices.Collect(s.Widest())) }

// Contains reports whether a CIDR of the set has an address.
func (s Set) Contains(a netip.Addr) bool {
	for range s.Overlapping(netip.PrefixFrom(a, a.BitLen())) {
		return true
	}
	return false
}

// Overlapping returns the set's CIDRs that overlap one, each once, the wider ones first.
func (s Set) Overlapping(p netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) { (*s.root(p)).overlapping(p.Masked(), yield) }
}

// Widest returns those of the set's CIDRs that are in none of its others, each once and in order, IPv4 first: together they have all
// addresses of the set.
func (s Set) Widest() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) { _ = s.v4.widest(yield) && s.v6.widest(yield) }
}

// Differ returns those CIDRs of was.Widest that now.Widest lacks, and those that only now.Widest has. It takes no longer than the
// sets' changes are many, if one has come of the other.
func Differ(was, now Set) (lost, gained []netip.Prefix) {
	differ(was.v4, now.v4, &lost, &gained)
	differ(was.v6, now.v6, &lost, &gained)
	return lost, gained
}
