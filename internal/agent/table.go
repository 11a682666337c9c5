package agent

import (
	"context"
	"net/netip"
	"reflect"
	"slices"

	"github.com/berth-net/berth/internal/kernel/nft"
)

// keepTable tells the table what should be in it, if that is not what it was told
// last, and else has it written again if the kernel could not have all of it. What
// else changes the table may hang, and with it who waits for that (aside).
func (a *Agent) keepTable(ctx context.Context) error {
	return a.aside(ctx, "the rules of the nftables table", func(context.Context) error {
		want := a.ruleset()
		if was := a.rules.Swap(&want); was != nil && reflect.DeepEqual(*was, want) {
			return a.egress.Retry()
		}
		return a.egress.SetRuleset(want)
	})
}

// outside returns those of blocked CIDRs that are in no pool: pods' own addresses are
// nobody's metadata service, whatever a cloud elsewhere has there.
func outside(pools, blocked []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(blocked), func(b netip.Prefix) bool {
		return slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Bits() <= b.Bits() && p.Overlaps(b) })
	})
}

// ruleset is what the agent's nftables table should say. Pools that drain are
// in it as long as they are in use.
func (a *Agent) ruleset() nft.Ruleset {
	c := a.config.Load()
	pools := prefixes(c.Pools)
	for _, h := range a.heldCIDRs() {
		if !slices.Contains(pools, h.cidr) {
			pools = append(pools, h.cidr)
		}
	}
	low, high := a.groups.Dying()
	return nft.Ruleset{
		Instance:    a.instance,
		CutLow:      low,
		CutHigh:     high,
		Live:        a.groups.Live(),
		Blocked:     outside(pools, c.BlockedCIDRs),
		Connections: uint32(c.Connections),
		Masquerade:  c.Masquerade.Enabled,
		Pools:       pools,
		Excluded:    c.Masquerade.ExcludedCIDRs,
	}
}
