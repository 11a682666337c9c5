package ground

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/table"
)

// keepTable gives the table its ruleset, if the ruleset differs from the one that the table got last, or if
// the table did not take that one. Otherwise keepTable lets the table try again the parts that the kernel
// did not support. keepTable works aside, because something else that changes the table may hang, and then
// every caller that waits for the table hangs as well.
func (g *Ground) keepTable(ctx context.Context) error {
	return g.aside(ctx, "the rules of the nftables table", func(context.Context) error {
		want := g.Ruleset()
		if was := g.rules.Load(); was != nil && reflect.DeepEqual(*was, want) {
			return g.node.Table.Retry()
		}
		was := g.rules.Swap(nil)
		if err := g.node.Table.SetRuleset(want); err != nil {
			return err
		}
		g.rules.Store(&want)
		g.taint(was)
		return nil
	})
}

// taint says that the table has noted nothing yet of the pools' CIDRs that are new in its rules: nobody knows which of
// their addresses others have reached. was is nil if nobody knows what the table had.
func (g *Ground) taint(was *nft.Ruleset) {
	for _, c := range routedPrefixes(g.config.Load().Pools) {
		if was == nil || !slices.Contains(was.Pools, c) {
			g.Pools.Taint(c)
		}
	}
	g.Hooks.Rests()
}

// outside returns the blocked CIDRs that are in no pool. If a pod can have an address, the address
// is not the metadata service of this node's cloud, even if another cloud has its service at that
// address.
func outside(pools, blocked []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(blocked), func(b netip.Prefix) bool {
		return slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Bits() <= b.Bits() && p.Overlaps(b) })
	})
}

// Ruleset returns what the agent's nftables table should contain. The ruleset has a CIDR that drains
// (Reload) as long as a wanted owner in the ledger has the CIDR.
func (g *Ground) Ruleset() nft.Ruleset {
	c := g.config.Load()
	pools := g.Prefixes()
	low, high := g.node.Groups.Dying()
	others := g.Hooks.Others()
	return nft.Ruleset{
		Instance:    g.Instance,
		CutLow:      low,
		CutHigh:     high,
		Live:        g.node.Groups.Live(),
		Blocked:     outside(pools, c.BlockedCIDRs),
		Connections: uint32(c.Connections),
		HostPorts:   true,
		Masquerade:  c.Masquerade.Enabled,
		Pools:       pools,
		Excluded:    others.Reached.With(c.Masquerade.Excluded()...),
		FirstPort:   c.Masquerade.Ports.First,
		LastPort:    c.Masquerade.Ports.Last,
		TunnelPort:  others.TunnelPort,
		Tunnels:     others.Tunnels,
	}
}

// MasqueradePorts returns the first and the last port that masquerade gives to pods' connections,
// and whether it is on.
func (g *Ground) MasqueradePorts() (first, last uint16, on bool) {
	m := g.Config().Masquerade
	return m.Ports.First, m.Ports.Last, m.Enabled
}

// Reach brings the table up to date with what Hooks.Others returns. It waits for its turn: keepTable would fail
// while somebody else is in it, and Reach would make somebody else fail.
func (g *Ground) Reach(ctx context.Context) {
	done, err := g.turn.Take(ctx)
	if err != nil {
		return
	}
	defer done()
	if err := g.keepTable(ctx); err != nil {
		g.Log.Warn("could not bring the nftables table up to date with the cluster's nodes; the sweep tries again", "err", err)
	}
}

// SetTable gives the table its ruleset. The agent calls SetTable before the engine verifies the
// table.
func (g *Ground) SetTable() error { return g.node.Table.SetRuleset(g.Ruleset()) }

// Renews reports whether an event says that the table of a former run differs from what this run wants:
// berthd has another version now, or another configuration, or somebody changed the table while no
// agent ran. Renews logs that the agent has replaced such a table. Nobody else needs to hear of it: the
// difference would look as if somebody had changed the table of a running agent.
func (g *Ground) Renews(ev engine.Event) bool {
	if g.begun.Load() || ev.Kind != table.KindName || !errors.Is(ev.Err, hold.ErrChanged) {
		return false
	}
	if ev.Type == engine.Mended {
		g.Log.Info("the agent replaced the nftables table of a former run, which differed")
	}
	return true
}

// KeepTable mends the table whenever others change it, until ctx ends (table.Keeper.Run).
func (g *Ground) KeepTable(ctx context.Context) { g.node.Table.Run(ctx, g.drift) }

// CutAnew is called when the table is not what the cuts of dying pods rely on. It wakes
// KeepCut.
func (g *Ground) CutAnew() {
	select {
	case g.doubted <- struct{}{}:
	default:
	}
}

// cutAgain is how long KeepCut waits after it has failed.
const cutAgain = time.Second

// KeepCut makes the cuts of dying pods independent of the table whenever the table is not
// what they rely on, until ctx ends.
func (g *Ground) KeepCut(ctx context.Context) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.doubted:
		}
		err := g.node.Links.DownDying(ctx)
		if err != nil && !failed {
			g.Log.Warn("could not set down the links of all pods that are being released: the agent tries again", "err", err)
		}
		if failed = err != nil; failed {
			g.CutAnew()
			daemon.Sleep(ctx, cutAgain, nil)
		}
	}
}

// drift is called when somebody has changed the agent's nftables table, or touched it
// (table.Report).
func (g *Ground) drift(drift, err error) {
	id, _ := g.Ledger.Holder(TableName)
	o, held := g.Ledger.Owner(id)
	tell := func(typ string) {
		if held && drift != nil {
			g.Hooks.Tell(typ, o, table.KindName, drift)
		}
	}
	tell(api.EventDrift)
	if err != nil {
		g.Log.Warn("could not restore the nftables table", "drift", drift, "err", err)
		return
	}
	if drift != nil {
		g.Log.Info("somebody changed the nftables table, and the agent restored it", "drift", drift)
	}
	tell(api.EventMended)
	if drift != nil {
		g.Meter.Repaired(table.KindName)
	}
	g.Hooks.Exposed() // the rules may not have held meanwhile
}
