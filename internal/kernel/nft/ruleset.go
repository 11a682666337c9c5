// Package nft keeps an agent's one nftables table: the rules that cut dying
// pods off, and masquerade for what leaves the pools. A Ruleset says what the
// table should be; Tables writes it in one transaction, compares it with what
// the kernel has, and tells when somebody touched it.
//
// It speaks netlink and needs no nft program. What it writes reads in `nft list
// table inet berth-INSTANCE` as Ruleset.String shows it.
package nft

import (
	"net/netip"
)

// Ruleset is the desired state of an agent's table.
type Ruleset struct {
	Instance string // of the agent; it makes the table's name
	Owner    string // who holds the table: a comment on each rule; may be empty

	// CutLow to CutHigh, both included, are the link groups of dying links:
	// nothing enters or leaves by them.
	CutLow, CutHigh uint32

	// Live, if it is not 0, is the link group of pods' links: what enters by
	// them comes from addresses that are routed to them. A kernel that cannot
	// tell (nft_fib) goes without this rule.
	Live uint32

	// Masquerade gives what leaves Pools for anywhere but Pools and Excluded
	// the address of the link it leaves by. Both may have IPv4 and IPv6 CIDRs
	// that overlap, in any order; host bits are ignored.
	Masquerade      bool
	Pools, Excluded []netip.Prefix
}

// TableName is the name of an instance's table, in family inet.
func TableName(instance string) string { return "berth-" + instance }

// Table returns the name of the ruleset's table.
func (r Ruleset) Table() string { return TableName(r.Instance) }

// String shows the table in the syntax of nft(8): `nft -f` of it makes the same.
func (r Ruleset) String() string { return r.table().String() }

// table lays the ruleset out.
//
// The cut rules stand before connection tracking (-200), so that a dying pod's
// packets leave no entry behind. In postrouting raw comes before masquerade
// too; what the host itself sends passes only there. No chain has a name that
// nft would take for a keyword, or nobody could load a listing of it.
func (r Ruleset) table() table {
	t := table{
		name: r.Table(),
		chains: []chain{
			{
				name: "cut_in", typ: "filter", hook: hookPrerouting, priority: priorityRaw,
				rules: []rule{dropGroup("iifgroup", r.CutLow, r.CutHigh)},
			},
			{
				name: "cut_out", typ: "filter", hook: hookPostrouting, priority: priorityRaw,
				rules: []rule{dropGroup("oifgroup", r.CutLow, r.CutHigh)},
			},
		},
	}
	if r.Live != 0 {
		in := &t.chains[0]
		in.rules = append(in.rules, dropSpoofed(r.Live))
	}
	if r.Masquerade {
		pools4, pools6 := spans(r.Pools)
		excluded4, excluded6 := spans(r.Excluded)
		t.sets = []set{
			{"pools4", ipv4, pools4}, {"excluded4", ipv4, excluded4},
			{"pools6", ipv6, pools6}, {"excluded6", ipv6, excluded6},
		}
		t.chains = append(t.chains, chain{
			name: "nat_out", typ: "nat", hook: hookPostrouting, priority: prioritySrcnat,
			rules: []rule{masquerade(ipv4), masquerade(ipv6)},
		})
	}
	for _, c := range t.chains {
		for i := range c.rules {
			c.rules[i].comment = r.Owner
		}
	}
	return t
}
