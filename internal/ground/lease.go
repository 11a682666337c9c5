package ground

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/overlap"
)

// Unfit returns which leases the node cannot take, and why. It never refuses a lease that is in force.
func (g *Ground) Unfit(leases []config.Lease) map[netip.Prefix]error {
	given := g.Given().Leases
	unfit := map[netip.Prefix]error{}
	var taken []netip.Prefix // by leases that are in force or fit, and by the file's pools
	for _, l := range given {
		taken = append(taken, l.CIDR)
	}
	taken = append(taken, prefixes(g.file.Load().Pools)...)
	for _, p := range g.file.Load().Pools {
		if p.Segment != nil {
			taken = append(taken, p.Segment.Subnets...)
		}
	}
	for _, h := range g.heldCIDRs() {
		taken = append(taken, h.cidr)
	}
	var fresh []ipam.PoolConfig
	for _, l := range leases {
		if slices.Contains(given, l) {
			continue
		}
		if err := g.unfit(l, taken); err != nil {
			unfit[l.CIDR] = err
			continue
		}
		taken = append(taken, l.CIDR)
		fresh = append(fresh, ipam.PoolConfig{Name: l.Pool, CIDRs: []netip.Prefix{l.CIDR}})
	}
	if len(fresh) == 0 {
		return unfit // overlap.Find costs a list of all addresses and routes
	}
	found, err := overlap.Find(fresh, g.node.Conn, g.agents())
	if err != nil {
		g.Log.Warn("could not look for blocks that overlap", "err", err)
	}
	for _, o := range found {
		if err := overlap.Refusal([]overlap.Overlap{o}); err != nil {
			unfit[o.CIDR] = err
		}
	}
	return unfit
}

// unfit returns why a lease that is not in force cannot be taken beside the CIDRs that are taken; nil: it can.
func (g *Ground) unfit(l config.Lease, taken []netip.Prefix) error {
	if !ipam.ValidName(l.Pool) {
		return fmt.Errorf("%.80q names no pool of a node: want 1 to 63 of a-z, 0-9 and -, not beginning with -", l.Pool)
	}
	if err := ipam.CheckCIDR(l.CIDR); err != nil {
		return err
	}
	for _, p := range g.file.Load().Pools {
		if p.Name == l.Pool {
			return fmt.Errorf("the node's own configuration has a pool %s", l.Pool)
		}
		if slices.Contains(p.CIDRs, l.CIDR) {
			return fmt.Errorf("it is of pool %s of the node's own configuration", p.Name)
		}
	}
	for _, given := range g.Given().Leases {
		if given.CIDR == l.CIDR {
			return fmt.Errorf("the node has it as a block of pool %s", given.Pool)
		}
	}
	if other, overlaps := overlapsAny(l.CIDR, taken); overlaps {
		return fmt.Errorf("it overlaps %s, which the node has", other)
	}
	return nil
}
