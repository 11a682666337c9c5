// Package nft keeps an agent's one nftables table: the rules that cut dying
// pods off, those that keep pods to what is theirs, and masquerade for what
// leaves the pools. A Ruleset says what the table should be; Tables writes it in
// one transaction, compares it with what the kernel has, and tells when somebody
// touched it.
//
// It speaks netlink and needs no nft program. What it writes reads in `nft list
// table inet berth-INSTANCE` as Ruleset.String shows it.
package nft

import (
	"net/netip"

	"github.com/berth-net/berth/internal/stamp"
	"golang.org/x/sys/unix"
)

// Ruleset is the desired state of an agent's table.
type Ruleset struct {
	Instance string // of the agent; it makes the table's name
	Owner    string // who holds the table: a comment on each rule; may be empty

	// CutLow to CutHigh, both included, are the link groups of dying links:
	// nothing enters or leaves by them.
	CutLow, CutHigh uint32

	// Live, if it is not 0, is the link group of pods' links. What enters by
	// them comes from addresses that are routed to them, goes to no loopback
	// address, and is held to Blocked and Connections.
	Live uint32

	// Blocked is where the node forwards nothing from live links, but for
	// questions to name servers (port 53). What the node itself listens to there
	// is reached. A connection that stood before goes on.
	Blocked []netip.Prefix

	// Connections, if it is not 0, is how many connections from one live link
	// the node keeps track of, about that many (see countNew), and how many TCP
	// connections it opens in half a minute (see dropHasty).
	Connections uint32

	// Masquerade gives what leaves Pools for anywhere but Pools and Excluded
	// the address of the link it leaves by, and a port from 1024 on. What connection tracking calls
	// invalid, or does not track, cannot be given another address, and is dropped
	// instead; errors about the node's own connections likewise.
	Masquerade      bool
	Pools, Excluded []netip.Prefix

	// All lists of CIDRs may have IPv4 and IPv6 in them that overlap, in any
	// order; host bits are ignored.
}

// Table returns the name of the ruleset's table.
func (r Ruleset) Table() string { return stamp.Table(r.Instance) }

// String shows the table in the syntax of nft(8): `nft -f` of it makes the same.
func (r Ruleset) String() string { return r.table(0).String() }

// table lays the ruleset out, but for the parts that the kernel lacks.
//
// The cut rules stand before connection tracking (-200), so that a dying pod's
// packets leave no entry behind, and so do those for live links' addresses. Both
// stand before its defragmentation (-400), too: it puts fragments together by what
// they say of their source, whatever link they came by, and what it makes of them
// came by the last one's. In postrouting raw comes before masquerade too; what the
// host itself sends passes only there. New connections are counted where they are known, and before
// anybody redirects them (-100). No chain has a name that nft would take for a
// keyword, or nobody could load a listing of it.
func (r Ruleset) table(lacks Parts) table {
	t := table{
		name: r.Table(),
		chains: []chain{
			{
				name: "cut_in", typ: "filter", hook: hookPrerouting, priority: priorityFirst,
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
		in.rules = append(in.rules, dropNobody(r.Live, ipv4), dropNobody(r.Live, ipv6), dropLinkLocal(r.Live), dropToLoopback(r.Live))
		if lacks&Sources == 0 {
			in.rules = append(in.rules, dropSpoofed(r.Live))
		}
		if r.Connections != 0 && lacks&Limit == 0 {
			sets, rules := limit(r.Live, r.Connections)
			t.sets = append(t.sets, sets...)
			t.chains = append(t.chains, chain{
				name: "new_in", typ: "filter", hook: hookPrerouting, priority: priorityMangle, rules: rules,
			})
		}
	}
	forwarded := chain{name: "through", typ: "filter", hook: hookForward, priority: priorityFilter}
	if r.Masquerade {
		pools4, pools6 := spans(r.Pools)
		excluded4, excluded6 := spans(r.Excluded)
		t.sets = append(t.sets,
			set{name: "pools4", of: ipv4.datatype, ranges: pools4}, set{name: "excluded4", of: ipv4.datatype, ranges: excluded4},
			set{name: "pools6", of: ipv6.datatype, ranges: pools6}, set{name: "excluded6", of: ipv6.datatype, ranges: excluded6})
		if lacks&Invalid == 0 {
			forwarded.rules = append(forwarded.rules, acceptKnown(), dropInvalid(ipv4), dropInvalid(ipv6), dropStray(ipv4), dropStray(ipv6))
		}
	}
	if r.Live != 0 && len(r.Blocked) > 0 {
		blocked4, blocked6 := spans(r.Blocked)
		t.sets = append(t.sets,
			set{name: "blocked4", of: ipv4.datatype, ranges: blocked4}, set{name: "blocked6", of: ipv6.datatype, ranges: blocked6})
		forwarded.rules = append(forwarded.rules,
			acceptNames(r.Live, "udp", unix.IPPROTO_UDP), acceptNames(r.Live, "tcp", unix.IPPROTO_TCP),
			dropBlocked(r.Live, ipv4), dropBlocked(r.Live, ipv6))
	}
	if len(forwarded.rules) > 0 {
		t.chains = append(t.chains, forwarded)
	}
	if r.Masquerade {
		out := chain{name: "nat_out", typ: "nat", hook: hookPostrouting, priority: prioritySrcnat}
		for _, f := range []family{ipv4, ipv6} {
			out.rules = append(out.rules,
				masqueradePorts(f, "tcp", unix.IPPROTO_TCP), masqueradePorts(f, "udp", unix.IPPROTO_UDP),
				masqueradePorts(f, "sctp", unix.IPPROTO_SCTP), masquerade(f))
		}
		t.chains = append(t.chains, out)
	}
	for _, c := range t.chains {
		for i := range c.rules {
			c.rules[i].comment = r.Owner
		}
	}
	return t
}
