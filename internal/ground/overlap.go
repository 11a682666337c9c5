package ground

import (
	"context"
	"net/netip"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/overlap"
)

// RefuseOverlaps refuses a configuration if somebody else on the node uses addresses of one of its
// pools, and says who. It never refuses a CIDR of which pods have addresses: the pods must not
// lose their agent, and only people can move them. SayOverlaps says who else uses such a CIDR.
func (g *Ground) RefuseOverlaps(c *config.Config) error {
	used := g.usedCIDRs()
	var vacant []ipam.PoolConfig
	for _, p := range c.Pools {
		free := ipam.PoolConfig{Name: p.Name, Segment: p.Segment}
		for _, cidr := range p.CIDRs {
			if !used[cidr] {
				free.CIDRs = append(free.CIDRs, cidr)
			}
		}
		if len(free.CIDRs) > 0 {
			vacant = append(vacant, free)
		}
	}
	if len(vacant) == 0 {
		return nil // overlap.Find costs a list of all addresses and routes
	}
	found, err := overlap.Find(vacant, g.node.Conn, g.agents())
	if err != nil {
		g.Log.Warn("could not look for pools that overlap", "err", err)
	}
	return overlap.Refusal(found)
}

// usedCIDRs returns the CIDRs of which pods have addresses.
func (g *Ground) usedCIDRs() map[netip.Prefix]bool {
	used := map[netip.Prefix]bool{}
	for _, p := range g.Pools.Stats(g.Clock.Now()) {
		for _, c := range p.CIDRs {
			if c.Used > 0 {
				used[c.CIDR] = true
			}
		}
	}
	return used
}

// SayOverlaps looks for pools in force whose addresses somebody else uses, and says so in the
// log and in the status.
func (g *Ground) SayOverlaps(context.Context) {
	found, err := overlap.Find(g.Config().Pools, g.node.Conn, g.agents())
	if err != nil {
		g.Log.Warn("could not look for pools that overlap", "err", err)
		return
	}
	var all []string
	for _, o := range found {
		if o.Within {
			g.Log.Info("a route leads to a network that contains the pool: the node no longer reaches hosts of that network at the pool's addresses", "overlap", o)
			continue
		}
		all = append(all, o.String())
		if o.Left {
			g.Log.Warn("a pool overlaps things of another agent, which is not running: if that agent will not run again, remove them", "overlap", o, "remedy", o.Remedy)
			continue
		}
		g.Log.Error("a pool overlaps what somebody else uses, and pods have addresses of it: move one of the two", "overlap", o)
	}
	g.overlaps.Store(&all)
}

// agents tells this agent from the others of the node.
func (g *Ground) agents() overlap.Agents { return overlap.Here(g.Instance, g.Netns.Ino) }

// Overlaps lists the pools in force whose addresses somebody else used at the last look.
func (g *Ground) Overlaps() []string {
	if all := g.overlaps.Load(); all != nil {
		return *all
	}
	return nil
}
