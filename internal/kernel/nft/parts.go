package nft

import (
	"cmp"
	"errors"
	"math/bits"
	"slices"

	"github.com/berth-net/berth/internal/kernel"
)

// Parts are optional parts of the table, for which a kernel may lack the expressions.
// Tables can leave out each part by itself; the rest of the table works without that part.
type Parts uint32

const (
	Sources   Parts = 1 << iota // drops packets of live links from addresses that are not theirs: nft_fib
	Invalid                     // drops invalid packets that would leave unmasqueraded: nft_ct
	Limit                       // limits connections: nft_ct, nft_connlimit, nft_limit, nft_numgen, dynamic sets
	Multipath                   // keeps MPTCP of live links from the node: nft_exthdr, which takes options out since Linux 5.18
	Shadows                     // keeps masquerade from giving host ports to pods' own connections: lookups in maps without a value, since Linux 6.5
	Bridges                     // keeps host ports behind bridges from pods' successors: a table of family bridge
	HostPorts                   // sends ports of the node to pods, and notes strays: nft_nat, nft_masq, nft_fib, nft_ct, dynamic sets

	allParts Parts = 1<<iota - 1
)

// attempts are all combinations of parts, those with the fewest parts first. Tables.write
// tries to leave them out in this order.
var attempts = func() []Parts {
	list := make([]Parts, allParts+1)
	for i := range list {
		list[i] = Parts(i)
	}
	slices.SortStableFunc(list, func(a, b Parts) int {
		return cmp.Compare(bits.OnesCount32(uint32(a)), bits.OnesCount32(uint32(b)))
	})
	return list
}()

// parts returns the parts that a ruleset asks for.
func (r Ruleset) parts() Parts {
	var p Parts
	if r.Live != 0 {
		p |= Sources | Multipath
	}
	if r.Live != 0 && r.HostPorts {
		p |= HostPorts | Shadows | Bridges
	}
	if r.Live != 0 && r.Connections != 0 {
		p |= Limit
	}
	if r.Masquerade || r.Live != 0 && r.Connections != 0 {
		p |= Invalid
	}
	return p
}

// cannot reports whether a transaction with these parts failed because the kernel does not
// support something in it. A kernel that cannot use maps as sets, as the part Shadows does, says
// "invalid argument".
func cannot(err error, with Parts) bool {
	return errors.Is(err, kernel.ErrNotFound) || errors.Is(err, kernel.ErrUnsupported) ||
		with&Shadows != 0 && errors.Is(err, kernel.ErrInvalid)
}
