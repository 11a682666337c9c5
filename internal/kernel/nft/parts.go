package nft

import (
	"cmp"
	"errors"
	"math/bits"
	"slices"

	"github.com/berth-net/berth/internal/kernel"
)

// Parts are parts of the table that a kernel may lack the expressions for. Each
// is left out on its own; the rest of the table holds all the same.
type Parts uint32

const (
	Sources Parts = 1 << iota // what comes from live links has their addresses: nft_fib
	Invalid                   // nothing invalid leaves unmasqueraded: nft_ct
	Limit                     // of connections: nft_ct, nft_connlimit, nft_limit, nft_numgen, dynamic sets

	allParts Parts = 1<<iota - 1
)

// attempts are all sets of parts, the smallest first: what a table is tried
// without, in this order.
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

// parts are those that a ruleset asks for.
func (r Ruleset) parts() Parts {
	var p Parts
	if r.Live != 0 {
		p |= Sources
	}
	if r.Live != 0 && r.Connections != 0 {
		p |= Limit
	}
	if r.Masquerade {
		p |= Invalid
	}
	return p
}

// cannot reports whether a transaction failed since the kernel does not know
// something that is in it.
func cannot(err error) bool {
	return errors.Is(err, kernel.ErrNotFound) || errors.Is(err, kernel.ErrUnsupported)
}
