package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Every rule computes in this register, 16 bytes wide (NFT_REG_1).
const reg = 1

// dropGroup drops what comes in ("iifgroup") or goes out ("oifgroup") by a link
// whose group is in [low, high].
//
//	iifgroup 1073741826-1073742847 drop
func dropGroup(word string, low, high uint32) rule {
	key := expr.MetaKeyIIFGROUP
	if word == "oifgroup" {
		key = expr.MetaKeyOIFGROUP
	}
	return rule{
		text: fmt.Sprintf("%s %d-%d drop", word, low, high),
		exprs: []expr.Any{
			&expr.Meta{Key: key, Register: reg},
			// A group is in the host's byte order, and ranges compare bytes.
			&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Range{
				Op: expr.CmpOpEq, Register: reg,
				FromData: binary.BigEndian.AppendUint32(nil, low),
				ToData:   binary.BigEndian.AppendUint32(nil, high),
			},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

// enters goes on if the packet came in by a link of a group.
func enters(group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, group)},
	}
}

// dropSpoofed drops what comes in by a link of a group with a source that is not
// behind that link: a pod speaks for itself alone. It stands before connection
// tracking, so that it leaves no entries in another's name either. What somebody
// routes to a pod on purpose comes from it as well.
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

// dropNobody drops what comes in by a link of a group from the unspecified
// address, which dropSpoofed lets through to broadcast and multicast for DHCP's
// and duplicate address detection's sake (nft_fib_ipv4.c, nft_fib_ipv6.c). Pods
// are given their addresses, and neighbours, without either. Their reports of
// multicast groups (MLD), which have this source too, are for routers of multicast.
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

// dropLinkLocal drops what comes in by a link of a group from a link-local address.
// Pods need none, and the node's ends have none (addrgenmode none): dropSpoofed
// drops it, then. But where somebody has given such an end one, a pod could fill the
// table of neighbours in the names of 2^64 that ask for routers, and, where somebody
// sets accept_ra for all links, be the node's default route.
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

// dropToLoopback drops what comes in by a link of a group for a loopback address
// of the node, which somebody may have opened for other ends (route_localnet).
// Nothing opens ::1: the kernel drops what comes in for it unseen.
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

// dropBlocked forwards nothing from a link of a group to the blocked addresses.
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

// acceptNames spares name servers from dropBlocked: on a cloud's node they may
// have the very address of the metadata (Google's do). word is udp or tcp.
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

// masquerade hides pods from those outside.
//
//	ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade fully-random
//
// What the host sends itself has no pool's source address and stays as it is;
// what is for the host does not pass postrouting. Ports are chosen at random
// since two flows that choose one at once lose a packet otherwise.
func masquerade(f family) rule {
	words, exprs := f.leaves()
	return rule{
		text:  words + " masquerade fully-random",
		exprs: append(exprs, &expr.Masq{FullyRandom: true}),
	}
}

// masqueradePorts is masquerade for a protocol with ports: it gives those from 1024 on.
// Else what comes from a port below that would be given one below it, too
// (nf_nat_l4proto_unique_tuple), of which the node's address has 424 or 511 for a
// destination: a pod could take them all, and some servers believe that whoever has one
// is root of the node. word is tcp, udp or sctp; nft takes a range for one of them only.
//
//	meta l4proto tcp ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 masquerade to :1024-65535 fully-random
func masqueradePorts(f family, word string, proto byte) rule {
	const first, maxReg = 1024, 2 // NFT_REG_2
	words, exprs := f.leaves()
	return rule{
		text: fmt.Sprintf("meta l4proto %s %s masquerade to :%d-65535 fully-random", word, words, first),
		exprs: slices.Concat(
			[]expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
				&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{proto}},
			},
			exprs,
			[]expr.Any{
				&expr.Immediate{Register: reg, Data: binary.BigEndian.AppendUint16(nil, first)},
				&expr.Immediate{Register: maxReg, Data: []byte{0xff, 0xff}},
				&masqTo{flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED | unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY, min: reg, max: maxReg},
			}),
	}
}

// dropInvalid drops what masquerade should hide, and what does not pass it
// since it belongs to no connection: it would leave with the pod's own address.
//
//	ct state invalid,untracked ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 drop
//
// Untracked are ICMPv6's messages between neighbours and about multicast groups
// (nf_conntrack_proto_icmpv6.c), wherever they go, and what others say notrack of.
// The state comes first: to look all packets up costs a tenth of forwarding.
func dropInvalid(f family) rule {
	words, exprs := f.leaves()
	invalid := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		mask(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
	return rule{
		text:  "ct state invalid,untracked " + words + " drop",
		exprs: slices.Concat(invalid, exprs, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// dropStray drops errors of a pod's about a connection that the node itself has begun
// with somebody outside. Such an error is part of that connection, which is not
// masqueraded, and would leave with the pod's own address. Pods have nothing to say
// about it. What is not ICMP is related by a helper, and becomes a connection that is
// masqueraded.
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

// acceptKnown spares packets of connections that both ends have agreed to what
// their first packets have passed: most packets are of these, and pay for one rule.
// Related ones have passed nothing: a pod can forge an error about any connection.
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

// mask keeps some bits of 4 bytes in the host's order.
func mask(bits uint32) expr.Any {
	return &expr.Bitwise{
		SourceRegister: reg, DestRegister: reg, Len: 4,
		Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4),
	}
}

// leaves goes on if a packet goes from the pools to neither pools nor excluded.
func (f family) leaves() (words string, exprs []expr.Any) {
	pools, excluded := "pools"+f.suffix, "excluded"+f.suffix
	exprs = f.protocol()
	exprs = append(exprs, f.match(f.saddr, pools, false)...)
	exprs = append(exprs, f.match(f.daddr, pools, true)...)
	exprs = append(exprs, f.match(f.daddr, excluded, true)...)
	return fmt.Sprintf("%[1]s saddr @%[2]s %[1]s daddr != @%[2]s %[1]s daddr != @%[3]s", f.word, pools, excluded), exprs
}

// protocol goes on if a packet is of the family.
func (f family) protocol() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{f.proto}},
	}
}

// load loads the first bytes of the address at offset, if the packet is of the
// family.
func (f family) load(offset, bytes uint32) []expr.Any {
	return append(f.protocol(), f.address(offset, bytes))
}

func (f family) address(offset, bytes uint32) expr.Any {
	return &expr.Payload{
		OperationType: expr.PayloadLoad, DestRegister: reg,
		Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: bytes,
	}
}

// match goes on if the address at offset is in the set, or is not.
func (f family) match(offset uint32, set string, not bool) []expr.Any {
	return []expr.Any{
		f.address(offset, f.datatype.Bytes),
		&expr.Lookup{SourceRegister: reg, SetName: set, Invert: not},
	}
}
