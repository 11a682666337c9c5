package share

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/blocks"
)

// family is what a pool has of one IP family.
type family struct {
	bits    int            // a block's prefix length
	usable  int64          // a block's addresses
	spec    []netip.Prefix // the CIDRs that the pool should have
	claimed []netip.Prefix // those that it has, in the order of their numbers
	space   blocks.Space   // of claimed
	given   blocks.Set
	closed  []bool // of each claimed CIDR: no more blocks of it are given
	drained []bool // of each claimed CIDR: it is no longer in the spec
}

// families are IPv4 and IPv6.
type families [2]*family

// widths are the lengths of the families' addresses, and defaults their blocks'.
var (
	widths   = [2]int{32, 128}
	defaults = [2]int{26, 122}
)

// readFamilies reads a pool.
func readFamilies(pool *v1alpha1.IPPool) (families, error) {
	var fs families
	ranges := [2]*v1alpha1.Range{pool.Spec.IPv4, pool.Spec.IPv6}
	claimed := [2][]string{pool.Status.BlockCIDRs.IPv4, pool.Status.BlockCIDRs.IPv6}
	given := [2]string{pool.Status.Given.IPv4, pool.Status.Given.IPv6}
	for i := range fs {
		f := &family{bits: defaults[i]}
		var err error
		if r := ranges[i]; r != nil {
			if r.BlockSize != 0 {
				f.bits = int(r.BlockSize)
			}
			if f.spec, err = parse(r.CIDRs); err != nil {
				return fs, err
			}
		}
		f.usable = min(blocks.Usable(f.bits, widths[i]), math.MaxInt32) // no node needs more
		if f.claimed, err = parse(claimed[i]); err != nil {
			return fs, fmt.Errorf("status.blockCIDRs: %w", err)
		}
		if f.space, err = blocks.NewSpace(f.claimed, f.bits); err != nil {
			return fs, fmt.Errorf("status.blockCIDRs: %w", err)
		}
		if f.given, err = blocks.Parse(given[i]); err != nil {
			return fs, fmt.Errorf("status.given: %w", err)
		}
		if total := f.space.Total(); f.given.Between(total, 1<<62) {
			return fs, fmt.Errorf("status.given: %s has more than the %d blocks of status.blockCIDRs", given[i], total)
		}
		fs[i] = f
	}
	return fs, nil
}

func parse(texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no CIDR", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// write puts what the families have into the pool's status.
func (fs families) write(status *v1alpha1.IPPoolStatus) {
	text := func(ps []netip.Prefix) (all []string) {
		for _, p := range ps {
			all = append(all, p.String())
		}
		return all
	}
	status.Given = v1alpha1.GivenBlocks{IPv4: fs[0].given.String(), IPv6: fs[1].given.String()}
	status.BlockCIDRs = v1alpha1.BlockCIDRs{IPv4: text(fs[0].claimed), IPv6: text(fs[1].claimed)}
	status.Blocks.Total, status.Blocks.Given = 0, 0
	for _, f := range fs {
		status.Blocks.Given += f.given.Len()
		for i := range f.claimed {
			if first, last := f.space.Numbers(i); i >= len(f.drained) || !f.drained[i] {
				status.Blocks.Total += last - first + 1
			}
		}
	}
}

// place is where a block is in its pool.
type place struct {
	*family
	number int64
}

// find returns the place of a block; false: the pool has no such block.
func (fs families) find(block netip.Prefix) (place, bool) {
	f := fs[0]
	if block.Addr().Is6() {
		f = fs[1]
	}
	n, ok := f.space.Number(block)
	return place{f, n}, ok
}

func (p place) isGiven() bool { return p.given.Has(p.number) }
func (p place) give()         { p.given.Add(p.number) }
func (p place) free()         { p.given.Remove(p.number) }

// isDrained reports whether the block's CIDR is no longer in the pool's spec.
func (p place) isDrained() bool {
	for i := range p.drained {
		if first, last := p.space.Numbers(i); p.number >= first && p.number <= last {
			return p.drained[i]
		}
	}
	return false
}

// next gives the lowest number that is free; false if none is.
func (f *family) next() (netip.Prefix, bool) {
	for i := range f.closed { // CIDRs that have been claimed just now are not in closed, and wait for the next pass
		if f.closed[i] {
			continue
		}
		if n, ok := f.given.Free(f.space.Numbers(i)); ok {
			f.given.Add(n)
			return f.space.Block(n), true
		}
	}
	return netip.Prefix{}, false
}

// set makes the CIDRs the claimed ones.
func (f *family) set(claimed []netip.Prefix) error {
	space, err := blocks.NewSpace(claimed, f.bits)
	if err == nil {
		f.claimed, f.space = claimed, space
	}
	return err
}

func overlaps(p netip.Prefix, others []netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(others, p.Overlaps)
	if i < 0 {
		return netip.Prefix{}, false
	}
	return others[i], true
}
