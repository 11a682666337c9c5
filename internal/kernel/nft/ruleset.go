// Package nft keeps an agent's one nftables table, with a small one of family bridge beside it (bridged.go). Its rules cut dying pods off, keep
// pods from sending in another's name and from opening too many connections, and
// masquerade traffic that leaves the pools. A Ruleset says what the table should be;
// Tables writes it in one transaction, compares it with the kernel's table, and tells when somebody has
// touched the kernel's table.
//
// The package speaks netlink and needs no nft program. `nft list table inet
// berth-INSTANCE`, and the same with bridge, show the tables as Ruleset.String does.
package nft

import (
	"cmp"
	"net/netip"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/stamp"
	"golang.org/x/sys/unix"
)

// Others is what a ruleset says of a cluster's other nodes.
type Others struct {
	// Reached are their pods' CIDRs and their own addresses, as far as traffic to them keeps pods' addresses.
	Reached    cidrs.Set
	TunnelPort uint16    // see Ruleset
	Tunnels    cidrs.Set // see Ruleset
}

// Ruleset is the desired state of an agent's table.
type Ruleset struct {
	Instance string // of the agent; the table's name follows from it
	Owner    string // the ID of the owner that holds the table, a comment on each rule; may be empty

	// CutLow to CutHigh, both included, are the link groups of dying links. The
	// rules drop every packet that enters or leaves by such a link. The rules also drop the node's
	// answers to packets whose hop-by-hop options are wrong, because the kernel answers such a packet
	// before any rule sees it.
	CutLow, CutHigh uint32

	// Live is the link group of pods' links; 0: there are no rules about them. A
	// packet that enters by such a link passes only if its source address is routed to
	// that link and its destination is no loopback address. Blocked and Connections apply to such a
	// packet too. From other links the table drops each new connection, error and fragment whose source
	// address is in Pools and is not routed to the link that it came by. The node does not receive what
	// live links say about path MTUs. If such an error names an MTU below 1280 bytes, machines from
	// which Masquerade hides the link do not receive the error either. If the table tracks connections,
	// for Connections or Masquerade, an ICMP error about a path MTU reaches the node or a live link
	// only if it belongs to a tracked connection. The node speaks no MPTCP with live links.
	Live uint32

	// Blocked lists destinations to which the node forwards nothing from live links,
	// except questions to name servers (port 53), and from which the node lets no connection to a live
	// link begin. Pods still reach what the node itself listens to there. Connections that existed
	// before the rule go on.
	Blocked []netip.Prefix

	// Connections limits each live link: the node tracks about that many connections from the link at
	// once (see countNew), and lets the link open about as many TCP connections in half a minute (see
	// dropHasty). 0: no limit.
	Connections uint32

	// Masquerade hides the addresses of Pools: a packet from Pools to anywhere but
	// Pools and Excluded gets the address of the link that it leaves by, and a port of
	// FirstPort to LastPort, which are 1024 and 65535 if they are 0. Packets that connection
	// tracking calls invalid, or does not track, cannot get another address: the rules drop them. The
	// rules also drop pods' ICMP errors about the node's own connections.
	Masquerade          bool
	Pools               []netip.Prefix
	Excluded            cidrs.Set
	FirstPort, LastPort uint16

	// HostPorts has the table send ports of the node to pods of live links; Ports are those
	// ports. Map and Unmap change the ports of a table without writing the table anew. With HostPorts the
	// table also notes addresses of Pools that have begun a connection by a link whose group is not in Live
	// to CutHigh (Tables.Strays): these rules need the same of the kernel.
	HostPorts bool
	Ports     []Port

	// TunnelPort is the UDP port to which other nodes send what their pods send through a tunnel to this node's pods; 0: there
	// is no tunnel. The node receives there only what comes from Tunnels. Masquerade gives no pod's flow by UDP that port: answers
	// to the flow would be another node's packets for the tunnel. The flows get the larger part of the range beside it.
	TunnelPort uint16
	Tunnels    cidrs.Set

	// Each list or set of CIDRs may mix IPv4 and IPv6, in any order. CIDRs may overlap, and
	// their host bits are ignored.
}

// Table returns the name of the ruleset's table.
func (r Ruleset) Table() string { return stamp.Table(r.Instance) }

// String shows the table in the syntax of nft(8): `nft -f` makes the same table from it.
func (r Ruleset) String() string { return r.table(0).String() }

// table returns the table that the ruleset asks for, without the parts that the kernel
// lacks.
//
// The rules that cut off, and those that check live links' addresses, come before
// connection tracking (-200), so that a packet that they drop leaves no entry behind. They also come
// before connection tracking joins fragments (-400). The kernel joins fragments by the source address
// that they claim, even if they came by different links, and the joined packet counts as one that came
// by the last fragment's link. The rules of copyHeads come right behind the joining, because before the
// joining a header may be in several fragments. The chain plain_in comes behind these, and before connection
// tracking. In postrouting, priority raw comes before masquerade too; packets that the host itself sends
// pass only through postrouting. The chain new_in counts new
// connections, and compares their sources with the pools, after connection tracking has seen the
// packets, and before anybody redirects them (-100). No chain has a name that is a keyword of nft(8),
// because nft could not load a listing of such a table.
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
			{
				name: "node_out", typ: "filter", hook: hookOutput, priority: priorityRaw,
				rules: []rule{dropAboutOptions()},
			},
		},
	}
	// Further rules use connection tracking only if the table needs it anyway.
	tracks := r.Connections != 0 && lacks&Limit == 0 || r.Masquerade && lacks&Invalid == 0
	hides := r.Live != 0 && (tracks || r.HostPorts && lacks&HostPorts == 0) // whether pods can hide something from what tracks
	t.sets = append(t.sets, r.pools().sets()...)
	if r.Live != 0 {
		in := &t.chains[0]
		in.rules = append(in.rules, dropNobody(r.Live, ipv4), dropNobody(r.Live, ipv6), dropLinkLocal(r.Live), dropToLoopback(r.Live))
		if lacks&Sources == 0 {
			in.rules = append(in.rules, dropSpoofed(r.Live), dropFragmentFromElsewhere(r.Live, ipv4), dropFragmentFromElsewhere(r.Live, ipv6))
		}
		t.chains = append(t.chains, chain{
			name: "heads_in", typ: "filter", hook: hookPrerouting, priority: priorityDefragged, rules: copyHeads(r.Live),
		})
		if hides {
			t.chains = append(t.chains, chain{name: "plain_in", typ: "filter", hook: hookPrerouting, priority: priorityRaw, rules: dontTrack(r.Live)})
		}
		begins := chain{name: "new_in", typ: "filter", hook: hookPrerouting, priority: priorityMangle}
		if tracks {
			begins.rules = append(begins.rules, acceptConfirmed()...)
		}
		if lacks&Sources == 0 {
			begins.rules = append(begins.rules, dropFromElsewhere(r.Live, ipv4), dropFromElsewhere(r.Live, ipv6))
		}
		if r.Connections != 0 && lacks&Limit == 0 {
			sets, rules := limit(r.Live, r.Connections)
			t.sets, begins.rules = append(t.sets, sets...), append(begins.rules, rules...)
		}
		told := chain{name: "node_in", typ: "filter", hook: hookInput, priority: priorityFilter}
		told.rules = append(told.rules, dropTooBig(r.Live, ipv4), dropTooBig(r.Live, ipv6))
		if tracks && lacks&Invalid == 0 {
			told.rules = append(told.rules, dropTooBigOfNothing(ipv4), dropTooBigOfNothing(ipv6))
		}
		if hides {
			told.rules = append(append(told.rules, dropMisreadByNode(r.Live)), dropHiddenFromNode(r.Live)...)
		}
		if lacks&Multipath == 0 {
			told.rules = append(told.rules, dropMultipath(r.Live)...)
		}
		t.chains = append(t.chains, begins, told)
	}
	if r.Live != 0 && r.HostPorts && lacks&HostPorts == 0 {
		t.chains[0].rules = append(t.chains[0].rules, dropToStand(ipv4), dropToStand(ipv6))
		out := &t.chains[1] // another chain would cost each packet more than its rules
		out.rules = append(out.rules, dropElsewhere(ipv4), dropElsewhere(ipv6))
		ports := r.Ports
		if lacks&Bridges != 0 {
			ports = closeBridged(ports)
		}
		sets, chains := hostPorts(r.Live, ports, lacks)
		t.sets, t.chains = append(t.sets, sets...), append(t.chains, chains...)
		sets, chains = noteStrays(r.Live, r.CutHigh) // which need the same of the kernel
		t.sets, t.chains = append(t.sets, sets...), append(t.chains, chains...)
	}
	forwarded := chain{name: "through", typ: "filter", hook: hookForward, priority: priorityFilter}
	if t.bridge = r.bridge(lacks); t.bridge != nil {
		forwarded.rules = append(forwarded.rules, markBound(ipv4), markBound(ipv6))
	}
	if r.Masquerade {
		t.sets = append(t.sets, r.excluded().sets()...)
		if lacks&Invalid == 0 {
			forwarded.rules = append(forwarded.rules, acceptKnown(), dropInvalid(ipv4), dropInvalid(ipv6), dropStray(ipv4), dropStray(ipv6))
		}
		if r.Live != 0 {
			forwarded.rules = append(forwarded.rules, dropSmallMTU(r.Live))
		}
	}
	if r.Live != 0 && tracks && lacks&Invalid == 0 {
		forwarded.rules = append(forwarded.rules, dropTooBigOfNothingTo(r.Live, ipv4), dropTooBigOfNothingTo(r.Live, ipv6))
	}
	if hides {
		forwarded.rules = append(forwarded.rules, dropHidden(r.Live), dropMisread())
	}
	if r.Live != 0 && len(r.Blocked) > 0 {
		t.sets = append(t.sets, r.blocked().sets()...)
		if r.Masquerade && lacks&Invalid == 0 { // otherwise dropBlocked sees the answers
			forwarded.rules = append(forwarded.rules, dropFromBlocked(r.Live, ipv4), dropFromBlocked(r.Live, ipv6))
		}
		if hides {
			forwarded.rules = append(forwarded.rules, dropHiddenToBlocked(r.Live))
		}
		forwarded.rules = append(forwarded.rules,
			acceptNames(r.Live, "udp", unix.IPPROTO_UDP), acceptNames(r.Live, "tcp", unix.IPPROTO_TCP),
			dropBlocked(r.Live, ipv4), dropBlocked(r.Live, ipv6))
	}
	if len(forwarded.rules) > 0 {
		t.chains = append(t.chains, forwarded)
	}
	if r.Masquerade {
		out := chain{name: "nat_out", typ: "nat", hook: hookPostrouting, priority: prioritySrcnat}
		first, last := cmp.Or(r.FirstPort, 1024), cmp.Or(r.LastPort, 65535)
		firstUDP, lastUDP := beside(first, last, r.TunnelPort)
		for _, f := range []family{ipv4, ipv6} {
			out.rules = append(out.rules,
				masqueradePorts(f, "tcp", unix.IPPROTO_TCP, first, last), masqueradePorts(f, "udp", unix.IPPROTO_UDP, firstUDP, lastUDP),
				masqueradePorts(f, "sctp", unix.IPPROTO_SCTP, first, last), masquerade(f))
		}
		t.chains = append(t.chains, out)
	}
	if r.TunnelPort != 0 {
		sets, chain := r.tunnel()
		t.sets, t.chains = append(t.sets, sets...), append(t.chains, chain)
	}
	for _, each := range t.both() {
		for _, c := range each.chains {
			for i := range c.rules {
				c.rules[i].comment = r.Owner
			}
		}
	}
	return t
}
