package nft

import (
	"iter"
	"net/netip"

	"github.com/berth-net/berth/internal/cidrs"
)

// addresses are what a pair of interval sets has, one set of each family, whose names begin alike.
type addresses struct {
	name string // "": the table has no such sets
	of   cidrs.Set
}

// sets returns the pair; nil: the table has none.
func (a addresses) sets() []set {
	if a.name == "" {
		return nil
	}
	return a.pair(a.of.Widest())
}

// pair returns the pair with members of its own. The members must not overlap.
func (a addresses) pair(members iter.Seq[netip.Prefix]) []set {
	v4, v6 := spans(members)
	return []set{
		{name: a.name + ipv4.suffix, of: ipv4.datatype, ranges: v4},
		{name: a.name + ipv6.suffix, of: ipv6.datatype, ranges: v6},
	}
}

// pools are the addresses of this node's pods.
func (r Ruleset) pools() (a addresses) {
	if r.Masquerade || r.Live != 0 {
		a = addresses{"pools", cidrs.Of(r.Pools...)}
	}
	return a
}

// excluded are the addresses to which pods' packets keep the pods' addresses.
func (r Ruleset) excluded() (a addresses) {
	if r.Masquerade {
		a = addresses{"excluded", r.Excluded}
	}
	return a
}

// tunnels are the addresses from which other nodes send through the tunnel.
func (r Ruleset) tunnels() (a addresses) {
	if r.TunnelPort != 0 {
		a = addresses{"tunnels", r.Tunnels}
	}
	return a
}

// blocked are the addresses that pods do not reach.
func (r Ruleset) blocked() (a addresses) {
	if r.Live != 0 && len(r.Blocked) > 0 {
		a = addresses{"blocked", cidrs.Of(r.Blocked...)}
	}
	return a
}
