package ground

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/poolroute"
)

// lossText says when the ledger was lost. Another loss, or a reboot, which may move the ledger's times, gives another text:
// then the agent does the pass behind the quarantine once more.
func (g *Ground) lossText() string { return g.Ledger.Quarantine().Since.UTC().Format(time.RFC3339Nano) }

// holdCIDRs takes the CIDRs of all pools at once, so that many CIDRs that hang delay the agent no
// longer than one CIDR. It returns the errors by pool.
func (g *Ground) holdCIDRs(ctx context.Context) map[string]error {
	var mu sync.Mutex
	failed := map[string]error{}
	var all sync.WaitGroup
	for _, pool := range g.config.Load().Pools {
		for _, cidr := range pool.CIDRs {
			all.Go(func() {
				spec := &poolroute.Spec{CIDR: cidr, Metric: g.node.Metric}
				rec := nodeRecord{Sort: poolSort, Pool: pool.Name, Cooldown: pool.Cooldown.String(), Segment: pool.Segment != nil}
				rec.Lease, rec.Default = leaseOf(g.Given(), pool.Name)
				if first, lost := g.Pools.First(cidr); lost {
					rec.First = first.String()
				}
				if g.Pools.Behind(cidr) {
					rec.Behind = g.lossText()
				}
				err := g.turned(pool, cidr)
				if err == nil {
					err = g.holdOne(ctx, rec, CIDRName(cidr), spec)
				}
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed[pool.Name] = errors.Join(failed[pool.Name], err)
				}
			})
		}
	}
	all.Wait()
	return failed
}

// holdStands takes the routes by which pods' answers to the node's loopback come back, for the
// families of the pools. If a route is missing, the agent attaches pods all the same: only host ports
// are out of reach by 127.0.0.1 or ::1.
func (g *Ground) holdStands(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, stand := range []netip.Addr{nft.Stand4, nft.Stand6} {
		of := func(p netip.Prefix) bool { return p.Addr().Is4() == stand.Is4() }
		if !slices.ContainsFunc(routedPrefixes(g.config.Load().Pools), of) {
			continue
		}
		spec := &poolroute.Spec{CIDR: netip.PrefixFrom(stand, stand.BitLen()), Metric: g.node.Metric, Local: true}
		all.Go(func() {
			if err := g.holdOne(ctx, nodeRecord{Sort: standSort}, StandName(stand), spec); err != nil {
				g.Log.Warn("could not take the route by which host ports are reached through the loopback", "err", err)
			}
		})
	}
}

// turned refuses a CIDR of a pool that has got a segment, or has lost it, while the agent holds the CIDR for the pool as it was: a
// route of the node leads to such addresses, or none does.
func (g *Ground) turned(pool ipam.PoolConfig, cidr netip.Prefix) error {
	for _, h := range g.heldCIDRs() {
		if h.cidr == cidr && h.segment != (pool.Segment != nil) {
			with := map[bool]string{true: "with", false: "without"}
			return fmt.Errorf("pool %s: the agent still has %s of a pool %s a segment: leave it out of the configuration until its last address has rested",
				pool.Name, cidr, with[h.segment])
		}
	}
	return nil
}

// Prefixes returns the CIDRs of all pools to which routes of the node lead, and those of them that drain.
func (g *Ground) Prefixes() []netip.Prefix {
	all := routedPrefixes(g.config.Load().Pools)
	for _, h := range g.heldCIDRs() {
		if !h.segment && !slices.Contains(all, h.cidr) {
			all = append(all, h.cidr)
		}
	}
	return all
}

func prefixes(pools []ipam.PoolConfig) []netip.Prefix {
	var ps []netip.Prefix
	for _, p := range pools {
		ps = append(ps, p.CIDRs...)
	}
	return ps
}

// routedPrefixes returns the CIDRs of the pools that have no segment.
func routedPrefixes(pools []ipam.PoolConfig) []netip.Prefix {
	return prefixes(slices.DeleteFunc(slices.Clone(pools), func(p ipam.PoolConfig) bool { return p.Segment != nil }))
}

// Former makes owners for the routes of CIDRs that are not in the configuration any more,
// because pods may still have addresses of these CIDRs. The agent takes everything else of its own
// at the start, so Former makes no owner for it.
func (g *Ground) Former(ctx context.Context) ([]hold.Owner, error) {
	found, err := g.node.Routes.Kind().Find(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("looking for the pools' routes: %w", err)
	}
	configured := prefixes(g.Config().Pools)
	var owners []hold.Owner
	for _, h := range found {
		if spec, ok := h.Spec.(*poolroute.Spec); ok && !spec.Local && !slices.Contains(configured, spec.CIDR) {
			owners = append(owners, nodeOwner(nodeRecord{Sort: poolSort, Pool: former}, CIDRName(spec.CIDR), spec))
		}
	}
	return owners, nil
}
