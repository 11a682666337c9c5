package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules here hold what a pod sends to the node's loopback to answers. Connection tracking calls
// each packet an answer that has the addresses and ports of one. So a pod could renew an entry of UDP
// by its own packets, without end, and whatever program of the node has the local port later would
// hear the pod. And a pod could send a SYN of its own to the port of a program that has given up
// (RFC 9293, 3.5, simultaneous open), or an INIT (RFC 9260, 5.2.1).

// answerable is how long a pod may answer after a program of the node has last sent in a flow of UDP
// by the loopback. The kernel keeps a silent flow of UDP for as long, unless somebody has changed that
// (nf_conntrack_udp_timeout_stream): what would have been late for the kernel is late here.
const answerable = 2 * time.Minute

// asked is the family's set of flows of UDP in which a program of the node has lately sent by the
// loopback. A key has the program's port, the pod's address and the pod's port. (The host port is not
// in it: if two host ports lead to one port of the pod, asking by one lets the pod answer by both.) If
// the set is full, or if somebody has emptied it, as Replace does, the pod's answers are dropped until
// the program sends again.
func asked(f family) set {
	key := concat{nftables.TypeInetService, f.datatype, nftables.TypeInetService}
	return set{name: "asked" + f.suffix, of: key.datatype(), dynamic: true, timeout: answerable}
}

// flow returns the expressions that load the key of the set asked from a packet of UDP, and the text of
// the key. The packet is a program's (answer false) or a pod's.
func (f family) flow(answer bool) (words string, load []expr.Any) {
	words, port := "th sport . %s daddr . th dport", uint32(reg8)
	program, addr, pod := uint32(0), f.daddr, uint32(2)
	if answer {
		words, program, addr, pod = "th dport . %s saddr . th sport", 2, f.saddr, 0
	}
	if f.proto == ipv6.proto {
		port = reg20
	}
	at := func(base expr.PayloadBase, offset, bytes, to uint32) expr.Any {
		return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: to, Base: base, Offset: offset, Len: bytes}
	}
	return fmt.Sprintf(words, f.word), []expr.Any{
		at(expr.PayloadBaseTransportHeader, program, 2, reg),
		at(expr.PayloadBaseNetworkHeader, addr, f.datatype.Bytes, reg4),
		at(expr.PayloadBaseTransportHeader, pod, 2, port),
	}
}

// noteAsked notes that a program of the node sends in a redirected flow of UDP by the loopback: from the
// loopback address, or from the address that stands for it by now. Only the packets of a program
// count: the node's kernel sends ICMP errors in the same direction, if nobody listens to a pod's packets,
// and a pod could fill the set by them. The chain comes behind ports_out, which redirects a flow's first
// packet.
//
//	meta l4proto udp ip saddr 169.254.255.1 ct direction original ct status dnat
//		update @asked4 { th sport . ip daddr . th dport }
func noteAsked(f family, from netip.Addr) rule {
	key := asked(f).name
	words, load := f.flow(false)
	return rule{
		text: fmt.Sprintf("meta l4proto udp %s saddr %s ct direction original ct status dnat update @%s { %s }", f.word, from, key, words),
		exprs: slices.Concat(carriedBy(unix.IPPROTO_UDP), f.is(f.saddr, from), goes(0), has(dnatted), load,
			[]expr.Any{&expr.Dynset{SrcRegKey: reg, SetName: key, Operation: unix.NFT_DYNSET_OP_UPDATE}}),
	}
}

// answers returns the rules of the chain loopback_back. All packets but those that live links, and links to which host ports are
// bound, send to a loopback address pay for the first three rules at most.
//
//	iifgroup != 1073741824 ip saddr . iif != @podlinks4 accept
//	ip daddr != 127.0.0.1 accept
//	ip6 daddr != ::1 accept
func answers(live uint32) []rule {
	rules := []rule{acceptUnbound(live, ipv4), acceptUnbound(live, ipv6), acceptElsewhere(ipv4), acceptElsewhere(ipv6)}
	for _, f := range []family{ipv4, ipv6} {
		rules = append(rules, dropSyn(f), dropInit(f), dropUnasked(f), standInBack(f))
	}
	return rules
}

// acceptElsewhere lets packets to other addresses than the loopback address skip the other rules.
//
//	ip daddr != 127.0.0.1 accept
func acceptElsewhere(f family) rule {
	loopback, _ := f.stand()
	return rule{
		text: fmt.Sprintf("%s daddr != %s accept", f.word, loopback),
		exprs: append(f.load(f.daddr, f.datatype.Bytes),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: loopback.AsSlice()},
			&expr.Verdict{Kind: expr.VerdictAccept}),
	}
}

// toLoopback lets a rule go on if a packet is an answer to the loopback address, in a connection that
// was redirected. Packets of a pod that others redirect to the loopback are no answers. toLoopback
// returns the text of the expressions, too.
func (f family) toLoopback() (words string, exprs []expr.Any) {
	loopback, _ := f.stand()
	return fmt.Sprintf("%s daddr %s ct direction reply ct status dnat", f.word, loopback),
		slices.Concat(f.is(f.daddr, loopback), goes(1), has(dnatted))
}

// dropSyn drops an answer that begins a TCP connection: a SYN without an ACK. The kernel has copied the
// flags (copyHeads), and so no pod changes them later.
//
//	ip daddr 127.0.0.1 ct direction reply ct status dnat tcp flags & (syn | ack) == syn drop
func dropSyn(f family) rule {
	const syn, ack = 2, 16
	words, exprs := f.toLoopback()
	return rule{
		text: words + " tcp flags & (syn | ack) == syn drop",
		exprs: slices.Concat(exprs, tcpBits(13, syn|ack), []expr.Any{
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{syn}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}),
	}
}

// dropInit drops an answer that begins an SCTP association. The rule first copies the type of the first
// chunk, because the kernel has copied no more than the common header's beginning (copyHeads).
//
//	ip daddr 127.0.0.1 ct direction reply ct status dnat meta l4proto sctp @th,96,8 set @th,96,8 @th,96,8 1 drop
func dropInit(f family) rule {
	words, exprs := f.toLoopback()
	return rule{
		text: fmt.Sprintf("%[1]s meta l4proto sctp @th,%[2]d,8 set @th,%[2]d,8 @th,%[2]d,8 %[3]d drop", words, 8*chunkAt, initChunk),
		exprs: slices.Concat(exprs, carriedBy(unix.IPPROTO_SCTP), []expr.Any{
			loadChunk(), &writeBack{offset: chunkAt, size: 1, register: reg}, loadChunk(),
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{initChunk}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}),
	}
}

// dropUnasked drops an answer in a flow of UDP in which no program of the node has lately sent. An ICMP
// error about such a flow passes: its key would be in the packet that it quotes.
//
//	ip daddr 127.0.0.1 ct direction reply ct status dnat meta l4proto udp
//		th dport . ip saddr . th sport != @asked4 drop
func dropUnasked(f family) rule {
	words, exprs := f.toLoopback()
	key, load := f.flow(true)
	return rule{
		text: fmt.Sprintf("%s meta l4proto udp %s != @%s drop", words, key, asked(f).name),
		exprs: slices.Concat(exprs, carriedBy(unix.IPPROTO_UDP), load, []expr.Any{
			&expr.Lookup{SourceRegister: reg, SetName: asked(f).name, Invert: true},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}),
	}
}

// carriedBy lets a rule go on if a packet's transport is the protocol.
func carriedBy(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
	}
}
