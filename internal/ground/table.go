package ground

import (
	"context"
	"net/netip"
	"reflect"
	"slices"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/table"
)

// keepTable tells the table what should be in it, if that is not what it was told
// last, and else has it written again if the kernel could not have all of it. What
// else changes the table may hang, and with it who waits for that (aside).
func (g *Ground) keepTable(ctx context.Context) error {
	return g.aside(ctx, "the rules of the nftables table", func(context.Context) error {
		want := g.Ruleset()
		if was := g.rules.Swap(&want); was != nil && reflect.DeepEqual(*was, want) {
			return g.node.Table.Retry()
		}
		return g.node.Table.SetRuleset(want)
	})
}

// outside returns those of blocked CIDRs that are in no pool: pods' own addresses are
// nobody's metadata service, whatever a cloud elsewhere has there.
func outside(pools, blocked []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(blocked), func(b netip.Prefix) bool {
		return slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Bits() <= b.Bits() && p.Overlaps(b) })
	})
}

// Ruleset is what the agent's nftables table should say. Pools that drain are
// in it as long as they are in use.
func (g *Ground) Ruleset() nft.Ruleset {
	c := g.config.Load()
	pools := prefixes(c.Pools)
	for _, h := range g.heldCIDRs() {
		if !slices.Contains(pools, h.cidr) {
			pools = append(pools, h.cidr)
		}
	}
	low, high := g.node.Groups.Dying()
	return nft.Ruleset{
		Instance:    g.Instance,
		CutLow:      low,
		CutHigh:     high,
		Live:        g.node.Groups.Live(),
		Blocked:     outside(pools, c.BlockedCIDRs),
		Connections: uint32(c.Connections),
		Masquerade:  c.Masquerade.Enabled,
		Pools:       pools,
		Excluded:    c.Masquerade.ExcludedCIDRs,
	}
}

// SetTable tells the table, before anybody verifies it, what should be in it.
func (g *Ground) SetTable() error { return g.node.Table.SetRuleset(g.Ruleset()) }

// KeepTable keeps the table as it should be until ctx ends (table.Run).
func (g *Ground) KeepTable(ctx context.Context) { g.node.Table.Run(ctx, g.drift) }

// CutAnew is told that the table is not what the cuts of dying pods rely on.
func (g *Ground) CutAnew() {
	select {
	case g.doubted <- struct{}{}:
	default:
	}
}

// KeepCut makes the cuts of dying pods stand without the table whenever that is not
// as it should be, until ctx ends.
func (g *Ground) KeepCut(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.doubted:
		}
		if err := g.node.Links.DownDying(ctx); err != nil {
			g.Log.Warn("cutting dying pods off without the nftables table", "err", err)
		}
	}
}

// drift is told that somebody changed the agent's nftables table, or touched it.
func (g *Ground) drift(drift, err error) {
	id, held := g.Ledger.Holder(TableName)
	if o, ok := g.Ledger.Owner(id); held && ok && drift != nil {
		g.Hooks.Tell(api.EventDrift, o, table.KindName, drift)
	}
	if err != nil {
		g.Log.Warn("keeping the nftables table", "drift", drift, "err", err)
		return
	}
	if drift != nil {
		g.Log.Info("the nftables table was changed by others and is restored", "drift", drift)
	}
	g.Hooks.Exposed() // whatever the table was in between
}
