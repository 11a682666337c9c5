package ground

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/ledger"
)

// Rest returns how long a name that is freed now must rest. For an address whose pool
// nobody knows any more, for example because an older version wrote the ledger, it returns
// a cooldown that is as long as any pool is likely to have had: another agent, with other
// pools, may give the address to a pod.
func (g *Ground) Rest(n hold.Name) time.Duration {
	if rest, known := g.Pools.Cooldown(n); known {
		return rest
	}
	return max(g.Pools.Longest(), g.config.Load().Cooldown, config.DefaultCooldown)
}

// Follow keeps the pools, and what is known of their CIDRs, in step with the ledger's commits.
func (g *Ground) Follow(c ledger.Change) {
	rested := map[hold.Name]ledger.Rest{}
	for _, r := range c.Rested {
		rested[r.Name] = r
	}
	defer g.Hooks.Counted()
	for _, edit := range c.Owners {
		if edit.After != nil {
			g.held.put(*edit.After)
		} else {
			g.held.drop(edit.Before.ID)
		}
		for _, n := range freed(edit) {
			if addr, err := ipam.ParseName(n); err == nil {
				g.Pools.Free(addr, rested[n].Until)
				g.Hooks.Rests()
			}
		}
	}
}

// freed returns the names that an edit took from an owner.
func freed(e ledger.Edit) []hold.Name {
	if e.Before == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.Before.Names), func(n hold.Name) bool {
		return e.After != nil && slices.Contains(e.After.Names, n)
	})
}

// Restore fills the pools from the ledger.
func (g *Ground) Restore() {
	owners := g.Ledger.Owners()
	for _, o := range owners {
		g.held.put(o)
	}
	g.regain()
	first := map[netip.Prefix]time.Duration{}
	var rinsed []netip.Prefix
	for _, h := range g.heldCIDRs() { // a CIDR that is out of the config may still be in use
		g.Pools.Drain(h.pool, h.cidr, h.cooldown)
		if h.first != ipam.Unknown {
			first[h.cidr] = h.first
		}
		if h.behind == g.lossText() {
			rinsed = append(rinsed, h.cidr)
		}
	}
	var claimed []netip.Addr
	for _, o := range owners {
		for _, n := range o.Names {
			if addr, err := ipam.ParseName(n); err == nil {
				claimed = append(claimed, addr)
			}
		}
	}
	var rests []ipam.Resting
	for _, r := range g.Ledger.Resting() {
		if addr, err := ipam.ParseName(r.Name); err == nil {
			rests = append(rests, ipam.Resting{Addr: addr, Until: r.Until})
		}
	}
	g.Pools.Restore(claimed, rests)
	q := g.Ledger.Quarantine()
	g.Pools.Quarantine(q.Since, q.Until, first, rinsed)
}

// Quarantine returns an op for a ledger that replaces a lost one. The op lets all addresses rest: for
// the longest cooldown of all pools or, without pools, for the configuration's cooldown. Even if this
// cooldown is 0, the op says when the ledger was lost, because a CIDR that has a cooldown may come
// back into the configuration.
func (g *Ground) Quarantine() ledger.Op {
	rest := g.Pools.Longest()
	if c := g.Config(); len(c.Pools) == 0 {
		rest = c.Cooldown
	}
	now := g.Clock.Now()
	return ledger.Quarantined(now, now.Add(rest))
}
