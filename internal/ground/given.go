package ground

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/config"
)

// Given returns the CIDRs that the cluster has given to the node's pods, as far as the agent knows.
func (g *Ground) Given() []netip.Prefix {
	if given := g.given.Load(); given != nil {
		return *given
	}
	return nil
}

// former is the pool in the record of a CIDR that the cluster has taken back.
const former = "former"

// Give says which CIDRs the cluster has given to the node's pods (Node.spec.podCIDRs). New CIDRs are used at once;
// others of the node's pool drain, as after a reload, and do not come back at a restart. An error that leaves Given as
// it was says that nothing has changed. After another error, a further Give of the same CIDRs takes what is lacking.
func (g *Ground) Give(ctx context.Context, cidrs []netip.Prefix) error {
	if slices.Equal(cidrs, g.Given()) && g.Lacking(config.NodePool) == nil {
		return nil
	}
	done, err := g.turn.Take(ctx)
	if err != nil {
		return err
	}
	defer done()
	err = g.reload(ctx, g.file.Load(), cidrs)
	if !slices.Equal(cidrs, g.Given()) {
		return err
	}
	for _, h := range g.heldCIDRs() {
		if h.pool == config.NodePool && !slices.Contains(cidrs, h.cidr) {
			rec := nodeRecord{Sort: poolSort, Pool: former, Cooldown: h.cooldown.String(), First: h.first.String()}
			err = errors.Join(err, g.amend(ctx, h.owner, rec))
		}
	}
	return err
}

// regain puts the CIDRs into force that the cluster had given to the node's pods when the agent was last told.
func (g *Ground) regain() {
	var cidrs []netip.Prefix
	for _, h := range g.heldCIDRs() {
		if h.pool == config.NodePool {
			cidrs = append(cidrs, h.cidr)
		}
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	if len(cidrs) == 0 || g.file.Load().Kubernetes == nil {
		return
	}
	if err := g.set(g.file.Load().WithNodePool(cidrs)); err != nil {
		g.Log.Error("the node's pool is not in force until the cluster is asked again", "cidrs", cidrs, "err", err)
		return
	}
	g.given.Store(&cidrs)
}
