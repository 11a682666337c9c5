package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/stamp"
)

// Stand4 and Stand6 take the place of 127.0.0.1 and ::1 in a packet while the kernel routes it: a
// packet that a client there sends to a pod through a host port, or the pod's answer. The kernel routes
// nothing with a loopback address to or from a link. (For IPv4 route_localnet would change that, for
// all packets of the link.) Packets have these addresses only inside the node; the agent holds local
// routes to them. Nobody else should have them: machines do not give themselves an address of
// 169.254.255.0/24 (RFC 3927, 2.1), and 100::/64 leads nowhere (RFC 6666).
var (
	Stand4 = netip.MustParseAddr("169.254.255.1")
	Stand6 = netip.MustParseAddr("100::1")
)

// stand returns the family's loopback address, and the address that stands for it (Stand4, Stand6).
func (f family) stand() (loopback, stand netip.Addr) {
	if f.proto == ipv4.proto {
		return netip.MustParseAddr("127.0.0.1"), Stand4
	}
	return netip.IPv6Loopback(), Stand6
}

// Registers of 4 bytes (NFT_REG32_01 and so on), as the kernel names them in its answers.
const (
	reg4  = 9  // 4 bytes behind the beginning of register 1
	reg8  = 10 // 8 bytes behind
	reg12 = 11 // 12 bytes behind
	reg20 = 13 // 20 bytes behind
	reg24 = 14 // 24 bytes behind
	reg16 = 2  // register 2 begins 16 bytes behind register 1
	regY  = 4  // a register that no key is in
)

// isLocal is RTN_LOCAL, dnatted IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h).
const (
	isLocal = unix.RTN_LOCAL
	dnatted = 1 << 5
)

// hostPorts returns the sets and chains by which host ports reach pods. link is the group of
// pods' links.
//
// The rules map only packets that go to the node itself (fib daddr type local): a port of the node says
// nothing about the same port of other machines, whose packets the node forwards (CVE-2025-67499).
// Clients keep their addresses, except three: the pod itself, clients at the node's loopback
// addresses, and pods behind the same bridge (hideNeighbour). Otherwise the pod could not answer their packets.
//
// A client's packet from 127.0.0.1 to a pod has Stand4 for its source until masquerade gives it the
// node's address; the kernel lets packets from ::1 leave. The pod's answer has its loopback
// destination again before the kernel routes it, and so gets Stand4 or Stand6 until the kernel has
// routed it. The rules do this only to packets of connections that somebody has redirected, as mapPort
// does, and only to answers, as connection tracking says. Connection tracking alone would let a pod
// renew a flow without end, and begin a connection in the direction of the answers. So the rules of
// loopback.go drop what begins a TCP connection or an SCTP association, and what a pod sends in a flow
// of UDP long after the node's program has last sent. First of all, dropToStand drops every packet
// that comes in for Stand4 or Stand6.
func hostPorts(live uint32, ports []Port, lacks Parts) (sets []set, chains []chain) {
	in := portEntries(ports)
	for _, s := range allPortSets() {
		if s.entries = in[s.name]; s.family != unix.NFPROTO_BRIDGE {
			sets = append(sets, s)
		}
	}
	sets = append(sets, asked(ipv4), asked(ipv6))
	from := chain{name: "ports_in", typ: "nat", hook: hookPrerouting, priority: priorityDstnat}
	by := chain{name: "ports_out", typ: "nat", hook: hookOutput, priority: priorityDstnat}
	back := chain{name: "ports_back", typ: "nat", hook: hookPostrouting, priority: prioritySrcnat}
	ports4, anyports4, _ := portSets(ipv4)
	from.rules = append(from.rules, acceptToLoopback())
	by.rules = append(by.rules, mapPort(ipv4, ports4, true), acceptToOtherLoopback(), mapPort(ipv4, anyports4, true), acceptFromLoopback())
	for _, f := range []family{ipv4, ipv6} {
		ports, anyports, hairpin := portSets(f)
		rules := []rule{mapPort(f, ports, false), mapPort(f, anyports, false)}
		from.rules = append(from.rules, rules...)
		by.rules = append(by.rules, rules...)
		back.rules = append(back.rules, hideHairpin(f, hairpin))
	}
	back.rules = append(back.rules, hideLoopback(live, ipv4, Stand4), hideLoopback(live, ipv6, netip.IPv6Loopback()),
		hideBoundLoopback(ipv4, Stand4), hideBoundLoopback(ipv6, netip.IPv6Loopback()), hideNeighbour(ipv4), hideNeighbour(ipv6))
	if lacks&Bridges == 0 {
		chains = append(chains, chain{name: "bridged_out", typ: "filter", hook: hookOutput, priority: priorityFilter, rules: []rule{markBound(ipv4), markBound(ipv6)}})
	}
	if lacks&Shadows == 0 {
		chains = append(chains, chain{name: "ports_shadows", typ: "filter", hook: hookPostrouting, priority: prioritySrcnat + 1, rules: dropShadows()})
	}
	return sets, append(chains, from, by, back,
		chain{name: "loopback_out", typ: "filter", hook: hookOutput, priority: priorityMangle, rules: []rule{standIn()}},
		chain{name: "loopback_asks", typ: "filter", hook: hookOutput, priority: priorityDstnat + 1,
			rules: []rule{noteAsked(ipv4, netip.AddrFrom4([4]byte{127, 0, 0, 1})), noteAsked(ipv4, Stand4), noteAsked(ipv6, netip.IPv6Loopback())}},
		chain{name: "loopback_back", typ: "filter", hook: hookPrerouting, priority: priorityDstnat + 1, rules: answers(live)},
		chain{name: "loopback_in", typ: "filter", hook: hookInput, priority: prioritySrcnat + 1,
			rules: []rule{standDown(ipv4), standDown(ipv6)}},
	)
}

// mapPort returns the rule that sends connections to a port of the node to the pod that has the port.
// With local the rule is for packets from 127.0.0.1, and gives them Stand4 for their source if a pod
// has the port. (The text has the new source before the map, because nft(8) has no words for the real
// order.)
//
//	fib daddr type local dnat ip to meta l4proto . ip daddr . th dport map @ports4
//	ip saddr 127.0.0.1 fib daddr type local ip saddr set 169.254.255.1 dnat ip to ...
func mapPort(f family, m set, local bool) rule {
	word, exprs := "meta nfproto ipv4 ", f.protocol()
	if f.proto == ipv6.proto {
		word = "meta nfproto ipv6 "
	}
	loopback, stand := f.stand()
	if local {
		word = "ip saddr 127.0.0.1 "
		exprs = f.is(f.saddr, loopback)
	}
	word += "fib daddr type local "
	exprs = append(exprs,
		&expr.Fib{Register: reg, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, isLocal)})
	key, load := f.portKey(m, "d")
	exprs = append(append(exprs, load...),
		&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: m.name})
	if local {
		set, write := f.set(f.saddr, stand, regY)
		word, exprs = word+set+" ", append(exprs, write...)
	}
	to := uint32(reg4)
	if f.proto == ipv6.proto {
		to = reg16
	}
	return rule{
		text: fmt.Sprintf("%sdnat %s to %s map @%s", word, f.word, key, m.name),
		exprs: append(exprs, &expr.NAT{
			Type: expr.NATTypeDestNAT, Family: uint32(f.proto), Specified: true,
			RegAddrMin: reg, RegAddrMax: reg, RegProtoMin: to, RegProtoMax: to,
		}),
	}
}

// portKey returns the expressions that load the key of one of the portSets, and the key's text. The key
// is a packet's protocol, its address if the map's keys have one, and its port. end is d for the
// destination's address and port, or s for the source's.
func (f family) portKey(m set, end string) (words string, load []expr.Any) {
	addr, at := f.daddr, uint32(2)
	if end == "s" {
		addr, at = f.saddr, 0
	}
	words, port := "meta l4proto . th "+end+"port", uint32(reg4)
	load = []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}}
	if len(m.keys) > 2 {
		words, port = "meta l4proto . "+f.word+" "+end+"addr . th "+end+"port", reg8
		if f.proto == ipv6.proto {
			port = reg20
		}
		load = append(load, &expr.Payload{
			OperationType: expr.PayloadLoad, DestRegister: reg4,
			Base: expr.PayloadBaseNetworkHeader, Offset: addr, Len: f.datatype.Bytes,
		})
	}
	return words, append(load, &expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: port,
		Base: expr.PayloadBaseTransportHeader, Offset: at, Len: 2,
	})
}

// acceptToLoopback leaves packets alone that come in for a loopback address. If the node sent such a
// packet, the chain ports_out has seen it already. Others can write such an address into their packets,
// too: the kernel drops these packets when it routes them, but would not if a rule here had mapped them
// before. (It drops packets for ::1 earlier.)
//
//	ip daddr 127.0.0.0/8 accept
func acceptToLoopback() rule {
	return rule{text: "ip daddr 127.0.0.0/8 accept", exprs: append(inLoopback(ipv4.daddr), &expr.Verdict{Kind: expr.VerdictAccept})}
}

// acceptToOtherLoopback leaves packets to a loopback address other than 127.0.0.1 alone, unless the
// node maps a port of that very address: programs of the node, such as systemd-resolved on 127.0.0.53,
// may listen there even if a pod has the same port of all addresses.
//
//	ip daddr 127.0.0.0/8 ip daddr != 127.0.0.1 accept
func acceptToOtherLoopback() rule {
	loopback, _ := ipv4.stand()
	return rule{
		text: "ip daddr 127.0.0.0/8 ip daddr != 127.0.0.1 accept",
		exprs: append(inLoopback(ipv4.daddr), ipv4.address(ipv4.daddr, ipv4.datatype.Bytes),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: loopback.AsSlice()}, &expr.Verdict{Kind: expr.VerdictAccept}),
	}
}

// acceptFromLoopback leaves packets alone that come from loopback addresses other than 127.0.0.1: the
// kernel would not let such a packet leave the node.
//
//	ip saddr 127.0.0.0/8 accept
func acceptFromLoopback() rule {
	return rule{text: "ip saddr 127.0.0.0/8 accept", exprs: append(inLoopback(ipv4.saddr), &expr.Verdict{Kind: expr.VerdictAccept})}
}

// inLoopback lets a rule go on if the address at offset in the network header is of 127.0.0.0/8.
func inLoopback(offset uint32) []expr.Any {
	return append(ipv4.load(offset, 1), &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{127}})
}

// hideHairpin gives the packets that a pod sends to its own host port the node's address as their
// source: otherwise the pod would not recognize the answers, which would come from itself.
//
//	ip saddr . ip daddr @hairpin4 masquerade fully-random
func hideHairpin(f family, hairpin set) rule {
	second := uint32(reg4)
	if f.proto == ipv6.proto {
		second = reg16
	}
	return rule{
		text: fmt.Sprintf("%[1]s saddr . %[1]s daddr @%[2]s masquerade fully-random", f.word, hairpin.name),
		exprs: append(f.protocol(),
			f.address(f.saddr, f.datatype.Bytes),
			&expr.Payload{
				OperationType: expr.PayloadLoad, DestRegister: second,
				Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.datatype.Bytes,
			},
			&expr.Lookup{SourceRegister: reg, SetName: hairpin.name},
			&expr.Masq{FullyRandom: true}),
	}
}

// hideLoopback gives the packets that the node sends to a pod from its loopback the node's address as
// their source.
//
//	oifgroup 1073741824 ip saddr 169.254.255.1 masquerade fully-random
func hideLoopback(live uint32, f family, source netip.Addr) rule {
	return rule{
		text:  fmt.Sprintf("oifgroup %d %s saddr %s masquerade fully-random", live, f.word, source),
		exprs: slices.Concat(leavesBy(live), f.is(f.saddr, source), []expr.Any{&expr.Masq{FullyRandom: true}}),
	}
}

// dropShadows drops the first packet of a pod's connection to which masquerade has just given a host port
// for its own port outside. The pod may be another agent's, whose masquerade knows nothing of this port.
// As long as the connection lasts, the machine at the other end could not reach the host port from that
// source port: its packets would be answers to the pod ("port shadow", CVE-2021-3773). The connection was
// not confirmed, and so the kernel forgets it, and draws another port when the pod sends again. Later
// packets of a connection pay for the first rule only.
//
//	ct status & confirmed != 0 accept
//	meta nfproto ipv4 iifgroup 1073741824-2147483647 ct status snat meta l4proto . th sport @anyports4 drop
//	meta nfproto ipv4 iifgroup 1073741824-2147483647 ct status snat meta l4proto . ip saddr . th sport @ports4 drop
//
// The rules use maps as sets, which Linux 6.5 is the first to allow. Since Linux 5.7, rules in
// postrouting can see by which link a packet came in.
func dropShadows() []rule {
	pods, byPods := inGroups("iifgroup", stamp.FirstGroup, stamp.LastGroup)
	rules := []rule{{
		text:  "ct status & confirmed != 0 accept",
		exprs: append(has(confirmed), &expr.Verdict{Kind: expr.VerdictAccept}),
	}}
	for _, f := range []family{ipv4, ipv6} {
		ports, anyports, _ := portSets(f)
		for _, m := range []set{anyports, ports} {
			key, load := f.portKey(m, "s")
			rules = append(rules, rule{
				text: fmt.Sprintf("meta nfproto ipv%s %s ct status snat %s @%s drop", f.suffix, pods, key, m.name),
				exprs: slices.Concat(f.protocol(), byPods, has(translated), load,
					[]expr.Any{&expr.Lookup{SourceRegister: reg, SetName: m.name}, &expr.Verdict{Kind: expr.VerdictDrop}}),
			})
		}
	}
	return rules
}

// standIn replaces the source of a client's packets from 127.0.0.1 to a pod, except the first
// packet, whose source mapPort has replaced. If other rules only send a connection to another loopback
// port, its packets keep their source, because its status has no snat.
//
//	ip saddr 127.0.0.1 ct direction original ct status dnat ct status snat ip saddr set 169.254.255.1
func standIn() rule {
	loopback, stand := ipv4.stand()
	set, write := ipv4.set(ipv4.saddr, stand, reg)
	return rule{
		text:  "ip saddr 127.0.0.1 ct direction original ct status dnat ct status snat " + set,
		exprs: slices.Concat(ipv4.is(ipv4.saddr, loopback), goes(0), has(dnatted), has(translated), write),
	}
}

// standInBack replaces the destination of a pod's answers to a loopback address, until the kernel has
// routed them. A packet that itself came in for a loopback address was dropped before: by
// dropToLoopback, and for IPv6 by the kernel.
//
//	ip daddr 127.0.0.1 ct direction reply ct status dnat ip daddr set 169.254.255.1
func standInBack(f family) rule {
	_, stand := f.stand()
	words, exprs := f.toLoopback()
	set, write := f.set(f.daddr, stand, reg)
	return rule{text: words + " " + set, exprs: append(exprs, write...)}
}

// standDown gives an answer its loopback destination again, after the kernel has routed the answer.
//
//	ip daddr 169.254.255.1 ct direction reply ip daddr set 127.0.0.1
func standDown(f family) rule {
	loopback, stand := f.stand()
	set, write := f.set(f.daddr, loopback, reg)
	return rule{
		text:  fmt.Sprintf("%s daddr %s ct direction reply %s", f.word, stand, set),
		exprs: slices.Concat(f.is(f.daddr, stand), goes(1), write),
	}
}

// dropToStand drops packets that come in for the address that stands for the loopback address: only
// standInBack, later, may give a packet this destination.
//
//	ip daddr 169.254.255.1 drop
func dropToStand(f family) rule {
	_, stand := f.stand()
	return rule{
		text:  fmt.Sprintf("%s daddr %s drop", f.word, stand),
		exprs: append(f.is(f.daddr, stand), &expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// goes lets a rule go on if a packet goes in a direction of its connection: 0 is the direction of
// the first packet, 1 the direction of the answers.
func goes(direction byte) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{direction}},
	}
}

// has lets a rule go on if a packet's connection has one of these bits in its status.
func has(status uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
		mask(status),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

// is lets a rule go on if the address at offset in the network header is addr.
func (f family) is(offset uint32, addr netip.Addr) []expr.Any {
	return append(f.load(offset, f.datatype.Bytes), &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: addr.AsSlice()})
}

// set returns the expressions that write a new address over the address at offset in the network
// header, and the text of these expressions. The parameter by is the register for the new address.
func (f family) set(offset uint32, to netip.Addr, by uint32) (words string, exprs []expr.Any) {
	words = fmt.Sprintf("%s daddr set %s", f.word, to)
	if offset == f.saddr {
		words = fmt.Sprintf("%s saddr set %s", f.word, to)
	}
	return words, []expr.Any{
		&expr.Immediate{Register: by, Data: to.AsSlice()},
		&writeAddress{offset: offset, size: f.datatype.Bytes, register: by, header: f.proto == ipv4.proto},
	}
}
