package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// dropGroup drops what comes in ("iifgroup") or goes out ("oifgroup") by a link
// whose group is in [low, high].
//
//	iifgroup 1073741826-1073742847 drop
func dropGroup(word string, low, high uint32) rule {
	text, exprs := inGroups(word, low, high)
	return rule{text: text + " drop", exprs: append(exprs, &expr.Verdict{Kind: expr.VerdictDrop})}
}

// inGroups lets a rule go on if the packet came in ("iifgroup") or goes out ("oifgroup") by a link whose
// group is in [low, high].
func inGroups(word string, low, high uint32) (text string, exprs []expr.Any) {
	return fmt.Sprintf("%s %d-%d", word, low, high), groups(expr.CmpOpEq, word, low, high)
}

// notInGroups is inGroups for all other links.
func notInGroups(word string, low, high uint32) (text string, exprs []expr.Any) {
	return fmt.Sprintf("%s != %d-%d", word, low, high), groups(expr.CmpOpNeq, word, low, high)
}

func groups(op expr.CmpOp, word string, low, high uint32) []expr.Any {
	key := expr.MetaKeyIIFGROUP
	if word == "oifgroup" {
		key = expr.MetaKeyOIFGROUP
	}
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg},
		// The kernel loads a group in the host's byte order, but compares a range byte
		// by byte.
		&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Range{
			Op: op, Register: reg,
			FromData: binary.BigEndian.AppendUint32(nil, low),
			ToData:   binary.BigEndian.AppendUint32(nil, high),
		},
	}
}

// dropSpoofed drops a packet that came in by a link of a group if its source address is
// not routed to that link, so that no pod can speak in another's name. The rule comes
// before connection tracking, so that the pod cannot leave entries in another's name
// either. A pod may use any address that somebody has routed to it on purpose.
//
//	iifgroup 1073741824 fib saddr . iif oif missing drop
func dropSpoofed(group uint32) rule {
	return rule{
		text: fmt.Sprintf("iifgroup %d fib saddr . iif oif missing drop", group),
		exprs: append(enters(group),
			&expr.Fib{Register: reg, ResultOIF: true, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// dropFromElsewhere drops a connection's first packet, or an error about a connection, if its
// source address is in the pools but not routed to the link that it came in by, which is no
// link of the group. Otherwise somebody outside could fill connection tracking in a pod's
// name. For the group's links dropSpoofed does the same. The kernel's fib lets packets through that
// come in by lo.
//
//	iifgroup != 1073741824 ip saddr @pools4 fib saddr . iif oif missing drop
//
// The rule comes behind acceptConfirmed, because looking up the sources of all packets
// would cost too much (see dropInvalid). Only a table that tracks no connections has no
// acceptConfirmed; there all packets pay.
func dropFromElsewhere(group uint32, f family) rule {
	return f.fromElsewhere(group, "", nil)
}

// dropFragmentFromElsewhere is dropFromElsewhere for fragments. The rule comes before the node joins
// the fragments, because the joined packet counts as one that came by the last fragment's link:
// somebody outside could write the end of a pod's datagram.
//
//	iifgroup != 1073741824 ip frag-off & 0x3fff != 0 ip saddr @pools4 fib saddr . iif oif missing drop
func dropFragmentFromElsewhere(group uint32, f family) rule {
	words, exprs := f.isFragment()
	return f.fromElsewhere(group, words+" ", exprs)
}

// fromElsewhere returns the rule of dropFromElsewhere, for those packets that the parameter `only` lets
// through. `words` is the text of `only`.
func (f family) fromElsewhere(group uint32, words string, only []expr.Any) rule {
	pools := "pools" + f.suffix
	return rule{
		text: fmt.Sprintf("iifgroup != %d %s%s saddr @%s fib saddr . iif oif missing drop", group, words, f.word, pools),
		exprs: slices.Concat(
			[]expr.Any{
				&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, group)},
			},
			f.protocol(),
			only,
			f.match(f.saddr, pools, false),
			[]expr.Any{
				&expr.Fib{Register: reg, ResultOIF: true, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true},
				&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}),
	}
}

// dropNobody drops a packet that came in by a link of a group from the unspecified
// address. dropSpoofed lets such packets through if they go to broadcast or multicast,
// for the sake of DHCP and duplicate address detection (nft_fib_ipv4.c, nft_fib_ipv6.c).
// Pods need neither: Berth gives them their addresses and neighbours. The rule also drops
// pods' reports of multicast groups (MLD), which can have this source too; only multicast routers
// need such reports.
//
//	iifgroup 1073741824 ip saddr 0.0.0.0 drop
func dropNobody(group uint32, f family) rule {
	nobody := netip.IPv6Unspecified()
	if f.proto == ipv4.proto {
		nobody = netip.IPv4Unspecified()
	}
	exprs := append(enters(group), f.load(f.saddr, f.datatype.Bytes)...)
	return rule{
		text: fmt.Sprintf("iifgroup %d %s saddr %s drop", group, f.word, nobody),
		exprs: append(exprs,
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: nobody.AsSlice()},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// dropLinkLocal drops a packet that came in by a link of a group from a link-local
// address. Pods need no such address. As long as the link's host end has none
// (addrgenmode none), dropSpoofed drops these packets already. But if somebody gives the host end a
// link-local address, a pod could fill the node's table of neighbours by asking for routers from 2^64
// addresses; and, if somebody sets accept_ra for all links, a pod could become the node's default
// route.
//
//	iifgroup 1073741824 ip6 saddr fe80::/10 drop
func dropLinkLocal(group uint32) rule {
	const bytes = 16
	first := func(b ...byte) []byte { return append(b, make([]byte, bytes-len(b))...) }
	exprs := append(enters(group), ipv6.load(ipv6.saddr, bytes)...)
	return rule{
		text: fmt.Sprintf("iifgroup %d ip6 saddr fe80::/10 drop", group),
		exprs: append(exprs,
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: bytes, Mask: first(0xff, 0xc0), Xor: first()},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: first(0xfe, 0x80)},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// dropToLoopback drops a packet that came in by a link of a group for an IPv4 loopback
// address of the node: somebody may have opened these addresses to links, for another purpose
// (route_localnet). No setting opens ::1: the kernel always drops packets for it that come in by a
// link.
//
//	iifgroup 1073741824 ip daddr 127.0.0.0/8 drop
func dropToLoopback(group uint32) rule {
	exprs := append(enters(group), ipv4.load(ipv4.daddr, 1)...)
	return rule{
		text: fmt.Sprintf("iifgroup %d ip daddr 127.0.0.0/8 drop", group),
		exprs: append(exprs,
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{127}},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// dropBlocked drops a forwarded packet that came in by a link of a group for a blocked
// address.
//
//	iifgroup 1073741824 ip daddr @blocked4 drop
func dropBlocked(group uint32, f family) rule {
	blocked := "blocked" + f.suffix
	exprs := append(enters(group), f.load(f.daddr, f.datatype.Bytes)...)
	return rule{
		text:  fmt.Sprintf("iifgroup %d %s daddr @%s drop", group, f.word, blocked),
		exprs: append(exprs, &expr.Lookup{SourceRegister: reg, SetName: blocked}, &expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// dropFromBlocked keeps blocked addresses from beginning connections to live links. Somebody
// outside could forge such a connection, and the pod's packets to the blocked address would
// be answers: acceptKnown lets them pass before dropBlocked sees them.
//
//	oifgroup 1073741824 ct state new ip saddr @blocked4 drop
func dropFromBlocked(group uint32, f family) rule {
	blocked := "blocked" + f.suffix
	return rule{
		text: fmt.Sprintf("oifgroup %d ct state new %s saddr @%s drop", group, f.word, blocked),
		exprs: slices.Concat(
			leavesBy(group),
			[]expr.Any{
				&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
				mask(expr.CtStateBitNEW),
				&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
			},
			f.load(f.saddr, f.datatype.Bytes),
			[]expr.Any{&expr.Lookup{SourceRegister: reg, SetName: blocked}, &expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// acceptNames keeps questions to name servers from dropBlocked: a cloud's name server
// may have the same address as its metadata server (Google's does). word is udp or tcp.
//
//	iifgroup 1073741824 udp dport 53 accept
func acceptNames(group uint32, word string, proto byte) rule {
	return rule{
		text: fmt.Sprintf("iifgroup %d %s dport 53 accept", group, word),
		exprs: append(enters(group),
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
			&expr.Payload{
				OperationType: expr.PayloadLoad, DestRegister: reg,
				Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2,
			},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{0, 53}},
			&expr.Verdict{Kind: expr.VerdictAccept}),
	}
}

// masquerade hides pods' addresses from machines outside the pools.
//
//	ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade fully-random
//
// Packets that the host sends for itself have no pool's source address and stay as they
// are; packets for the host do not pass postrouting. The kernel chooses ports at random, because
// otherwise two flows that choose the same port at once lose a packet.
func masquerade(f family) rule {
	words, exprs := f.leaves()
	return rule{
		text:  words + " masquerade fully-random",
		exprs: append(exprs, &expr.Masq{FullyRandom: true}),
	}
}

// masqueradePorts is masquerade for a protocol with ports: the rule gives out ports from first, which
// is 1024 or more, to last. Otherwise the kernel would give a connection from a port below 1024 another
// port below 1024 (nf_nat_l4proto_unique_tuple). The node's address has only 424 or 511 of these low
// ports for each destination, and a pod could take them all. Besides, some servers believe that a
// client with such a port is root on the node. word is tcp, udp or sctp: nftables accepts a range of
// ports only in a rule for one protocol.
//
//	meta l4proto tcp ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade to :1024-65535 fully-random
func masqueradePorts(f family, word string, proto byte, first, last uint16) rule {
	const maxReg = 2 // NFT_REG_2
	words, exprs := f.leaves()
	return rule{
		text: fmt.Sprintf("meta l4proto %s %s masquerade to :%d-%d fully-random", word, words, first, last),
		exprs: slices.Concat(
			[]expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
				&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
			},
			exprs,
			[]expr.Any{
				&expr.Immediate{Register: reg, Data: binary.BigEndian.AppendUint16(nil, first)},
				&expr.Immediate{Register: maxReg, Data: binary.BigEndian.AppendUint16(nil, last)},
				&masqTo{flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED | unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY, min: reg, max: maxReg},
			}),
	}
}

// dropInvalid drops packets that masquerade should hide but never sees, because they
// belong to no connection. They would leave with the pod's own address.
//
//	ct state invalid,untracked ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 drop
//
// The kernel does not track ICMPv6 messages between neighbours or about multicast groups,
// wherever they go (nf_conntrack_proto_icmpv6.c), nor packets for which others have a
// notrack rule. The rule checks the state before it looks addresses up, because looking up all
// packets' addresses would cost a tenth of forwarding.
func dropInvalid(f family) rule {
	words, exprs := f.leaves()
	return rule{
		text:  "ct state invalid,untracked " + words + " drop",
		exprs: slices.Concat(ofNothing(), exprs, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// dropStray drops a pod's ICMP error about a connection that the node itself began with a
// machine outside. The kernel takes such an error for a part of that connection, which is
// not masqueraded, so the error would leave with the pod's own address. No pod has a reason to send
// such an error. Related packets that are not ICMP are related by a helper: they begin a connection of
// their own, which is masqueraded.
//
//	ct state related ct direction original ct status & snat == 0 meta l4proto icmp
//		ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 drop
func dropStray(f family) rule {
	words, exprs := f.leaves()
	related := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		mask(expr.CtStateBitRELATED),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{0}},
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg},
		mask(translated),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{f.icmp}},
	}
	return rule{
		text:  fmt.Sprintf("ct state related ct direction original ct status & snat == 0 meta l4proto %s %s drop", f.icmpWord, words),
		exprs: slices.Concat(related, exprs, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// translated is IPS_SRC_NAT (linux/netfilter/nf_conntrack_common.h).
const translated = 1 << 4

// acceptKnown lets packets of established connections skip the rules below it, which the
// first packets of those connections have passed. Most packets belong to such
// connections, and so pay for one rule only. Related packets do not skip the rules,
// because nothing has checked them: a pod can forge an error about any connection.
//
//	ct state established accept
func acceptKnown() rule {
	return rule{
		text: "ct state established accept",
		exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
			mask(expr.CtStateBitESTABLISHED),
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}
