package ground

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/ipam"
)

// Given returns what the cluster has given to the node's pods, as far as the agent knows.
func (g *Ground) Given() config.Given {
	if given := g.given.Load(); given != nil {
		return *given
	}
	return config.Given{}
}

// former is the pool in the record of a CIDR of the node that the cluster has taken back.
const former = "former"

// Give says which CIDRs and blocks the cluster has given to the node's pods. New ones are used at once;
// others that it had given drain, as after a reload, and do not come back at a restart. An error that leaves Given as
// it was says that nothing has changed. After another error, a further Give of the same takes what is lacking.
func (g *Ground) Give(ctx context.Context, given config.Given) error {
	if given.Is(g.Given()) && g.equippedFor(given) && len(g.takenBack(given)) == 0 {
		return nil
	}
	done, err := g.turn.Take(ctx)
	if err != nil {
		return err
	}
	defer done()
	err = g.reload(ctx, g.file.Load(), given)
	if !given.Is(g.Given()) {
		return err
	}
	for _, h := range g.takenBack(given) {
		rec := nodeRecord{Sort: poolSort, Pool: former, Cooldown: h.cooldown.String(), First: h.first.String()}
		if h.lease != "" {
			rec.Pool, rec.Lease = h.pool, leaseDrains
		}
		err = errors.Join(err, g.amend(ctx, h.owner, rec))
	}
	return err
}

// takenBack returns what the ledger takes for given, and is not.
func (g *Ground) takenBack(given config.Given) []heldCIDR {
	return slices.DeleteFunc(slices.Clone(g.heldCIDRs()), func(h heldCIDR) bool {
		return !h.given() || slices.Contains(given.Leases, config.Lease{Pool: h.pool, CIDR: h.cidr})
	})
}

// equippedFor reports whether the node lacks nothing of what the pods of the given pools need.
func (g *Ground) equippedFor(given config.Given) bool {
	return !slices.ContainsFunc(given.Pools(), func(p ipam.PoolConfig) bool { return g.Lacking(p.Name) != nil })
}

// given reports whether the cluster has given the CIDR, when the agent was last told.
func (h heldCIDR) given() bool { return h.lease == leaseGiven || h.pool == config.NodePool }

// leaseOf returns what the record of a pool's CIDR says of the cluster (nodeRecord).
func leaseOf(given config.Given, pool string) (lease string, standard bool) {
	if pool == config.NodePool || !slices.ContainsFunc(given.Leases, func(l config.Lease) bool { return l.Pool == pool }) {
		return "", false
	}
	return leaseGiven, pool == given.Default
}

// regain puts into force what the cluster had given to the node's pods when the agent was last told.
func (g *Ground) regain() {
	k := g.file.Load().Kubernetes
	if k == nil {
		return
	}
	var given config.Given
	for _, h := range g.heldCIDRs() {
		if !h.given() || k.FromPools() != (h.lease == leaseGiven) {
			continue
		}
		given.Leases = append(given.Leases, config.Lease{Pool: h.pool, CIDR: h.cidr})
		if h.standard || h.pool == config.NodePool {
			given.Default = h.pool
		}
	}
	if len(given.Leases) == 0 {
		return
	}
	given.Sort()
	if err := g.set(g.file.Load().With(given)); err != nil {
		g.Log.Error("the cluster's pools are not in force until the cluster is asked again", "leases", given.Leases, "err", err)
		return
	}
	g.given.Store(&given)
}

// Block is a block of a cluster's pool whose lease the ledger has.
type Block struct {
	config.Lease
	Drains bool // no address is given out of it any more
	// Lost says that the ledger does not know of which pool the CIDR is, and whether it is one's at all: an agent that had
	// lost its ledger has found the CIDR on the node.
	Lost bool
}

// Blocks returns the blocks of the cluster's pools that the ledger has, in order.
func (g *Ground) Blocks() (all []Block) {
	for _, h := range g.heldCIDRs() {
		if h.lease != "" || h.pool == former {
			all = append(all, Block{config.Lease{Pool: h.pool, CIDR: h.cidr}, h.lease != leaseGiven, h.lease == ""})
		}
	}
	slices.SortFunc(all, func(a, b Block) int { return a.CIDR.Compare(b.CIDR) })
	return all
}

// Figures returns the figures of all pools.
func (g *Ground) Figures() []ipam.Figures { return g.Pools.Stats(g.Clock.Now()) }

// overlapsAny returns one of the prefixes that overlaps c, and is not c.
func overlapsAny(c netip.Prefix, prefixes []netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p != c && p.Overlaps(c) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return prefixes[i], true
}
