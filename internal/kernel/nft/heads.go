package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/stamp"
)

// head and headTCP are the parts of a transport's header that copyHeads writes back, in bytes: with what is before it,
// the ports of all protocols and an ICMP header; and TCP's flags. Of a packet that the kernel has joined, and may
// cut up again, SCTP and UDP have no more in one piece (GSO_BY_FRAGS, SKB_GSO_FRAGLIST).
var (
	head    = writeBack{offset: 4, size: 4, register: reg}
	headTCP = writeBack{offset: 12, size: 4, register: reg}
)

// errorHeads are the parts of an ICMP error that copyHeads writes back: as far as an error has them, the IPv4 header
// and the ports of the packet that the error is about; and the same for IPv6.
var errorHeads = []writeBack{{offset: 20, size: 16, register: reg}, {offset: 40, size: 16, register: reg}}

// copyHeads copies what the rules and connection tracking read of a live link's packet into memory that only the kernel
// writes. A pod can send packets whose contents stay in its own pages (PACKET_TX_RING, splice),
// and change the contents until somebody reads them for the last time: a rule could see one port, and connection tracking
// another, or the rules an echo request, and the receiver an error. If a rule writes bytes of a packet, the kernel copies
// all bytes before them, even if the rule writes the same bytes (nft_payload_set_eval, skb_ensure_writable).
//
//	iifgroup != 1073741824 accept
//	@th,32,32 set @th,32,32
//	meta l4proto tcp @th,96,32 set @th,96,32
//	ip protocol != icmp accept
//	ip6 nexthdr tcp accept
//	ip6 nexthdr udp accept
//	ip6 nexthdr sctp accept
//	@th,160,128 set @th,160,128
//	@th,320,128 set @th,320,128
//
// A packet that is too short for a rule, or is a fragment without the beginning, passes unchanged. IPv6
// may have further headers before ICMP, and a pod can change these headers, too. So the last rules copy
// everything of IPv6 but plain TCP, UDP and SCTP.
func copyHeads(group uint32) []rule {
	tcp := headTCP.rule()
	tcp.text = "meta l4proto tcp " + tcp.text
	tcp.exprs = slices.Concat([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_TCP}},
	}, tcp.exprs)
	rules := []rule{acceptOthers(group), head.rule(), tcp,
		ipv4.carries("ip protocol != icmp accept", 9, expr.CmpOpNeq, unix.IPPROTO_ICMP),
		ipv6.carries("ip6 nexthdr tcp accept", 6, expr.CmpOpEq, unix.IPPROTO_TCP),
		ipv6.carries("ip6 nexthdr udp accept", 6, expr.CmpOpEq, unix.IPPROTO_UDP),
		ipv6.carries("ip6 nexthdr sctp accept", 6, expr.CmpOpEq, unix.IPPROTO_SCTP),
	}
	for _, h := range errorHeads {
		rules = append(rules, h.rule())
	}
	return rules
}

// rule returns the rule that writes the bytes back.
func (h writeBack) rule() rule {
	at := fmt.Sprintf("@th,%d,%d", 8*h.offset, 8*h.size)
	return rule{
		text: at + " set " + at,
		exprs: []expr.Any{
			&expr.Payload{
				OperationType: expr.PayloadLoad, DestRegister: reg,
				Base: expr.PayloadBaseTransportHeader, Offset: h.offset, Len: h.size,
			},
			&h,
		},
	}
}

// extensions are the next headers behind which connection tracking looks for the transport (ipv6_ext_hdr).
var extensions = []byte{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_NONE, unix.IPPROTO_DSTOPTS}

// dontTrack keeps connection tracking from what a live link sends by IPv6 behind an extension header. Rules take an
// authentication header (AH, RFC 4302) for the transport (nft_set_pktinfo_ipv6), and connection tracking and the
// rewriting of ports look behind it (ipv6_skip_exthdr). And a pod can change extension headers while the packet passes:
// copyHeads copies them only as far as it finds a transport. So a pod could open connections, get ports of the node,
// and send errors, and no rule about TCP, UDP, SCTP or ICMP would see it. What is not tracked leaves the node by no
// other address than the pod's own, and reaches neither another pod (dropHidden) nor the node (dropHiddenFromNode). The IPv6 header itself is the kernel's own
// copy (ip6_rcv_core), and joined fragments have no fragment header any more.
//
//	iifgroup != 1073741824 accept
//	meta nfproto ipv4 accept
//	ip6 nexthdr 0 notrack
//	(the same with 43, 44, 51, 59 and 60)
func dontTrack(group uint32) []rule {
	rules := []rule{acceptOthers(group), {
		text:  "meta nfproto ipv4 accept",
		exprs: append(ipv4.protocol(), &expr.Verdict{Kind: expr.VerdictAccept}),
	}}
	for _, next := range extensions {
		rules = append(rules, rule{
			text: fmt.Sprintf("ip6 nexthdr %d notrack", next),
			exprs: append(ipv6.load(6, 1),
				&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{next}}, &expr.Notrack{}),
		})
	}
	return rules
}

// dropHidden drops what a live link sends by IPv6 to a pod of any instance, if it is not tracked, such as what dontTrack
// has left alone. The receiver's answers would be tracked, and count as connections that the receiver has begun.
//
//	iifgroup 1073741824 oifgroup 1073741824-2147483647 ct state untracked meta nfproto ipv6 drop
func dropHidden(group uint32) rule {
	pods, toPods := inGroups("oifgroup", stamp.FirstGroup, stamp.LastGroup)
	return rule{
		text:  fmt.Sprintf("iifgroup %d %s ct state untracked meta nfproto ipv6 drop", group, pods),
		exprs: slices.Concat(enters(group), toPods, untracked(), ipv6.protocol(), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// dropHiddenFromNode drops what a live link sends to the node by IPv6 behind an extension header (dontTrack): the node's answers
// would be tracked, as connections that the node has begun, which are in nobody's share.
//
//	iifgroup 1073741824 ip6 nexthdr 0 drop
//	(the same with 43, 44, 51, 59 and 60)
func dropHiddenFromNode(group uint32) (rules []rule) {
	for _, next := range extensions {
		rules = append(rules, rule{
			text: fmt.Sprintf("iifgroup %d ip6 nexthdr %d drop", group, next),
			exprs: slices.Concat(enters(group), ipv6.load(6, 1), []expr.Any{
				&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{next}}, &expr.Verdict{Kind: expr.VerdictDrop},
			}),
		})
	}
	return rules
}

// dropHiddenToBlocked drops what is not tracked, and goes by IPv6 to a blocked address. It comes before acceptNames, which
// reads a port behind headers that a pod can change while the packet passes.
//
//	iifgroup 1073741824 ct state untracked ip6 daddr @blocked6 drop
func dropHiddenToBlocked(group uint32) rule {
	return rule{
		text: fmt.Sprintf("iifgroup %d ct state untracked ip6 daddr @blocked6 drop", group),
		exprs: slices.Concat(enters(group), untracked(), ipv6.protocol(), ipv6.match(ipv6.daddr, "blocked6", false),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// untracked lets a rule go on if connection tracking leaves a packet alone.
func untracked() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		mask(expr.CtStateBitUNTRACKED),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

// acceptOthers lets packets that came in by no link of a group skip the other rules.
//
//	iifgroup != 1073741824 accept
func acceptOthers(group uint32) rule {
	return rule{
		text: fmt.Sprintf("iifgroup != %d accept", group),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: binary.NativeEndian.AppendUint32(nil, group)},
			&expr.Verdict{Kind: expr.VerdictAccept},
		},
	}
}

// carries returns a rule that accepts a packet of the family if the byte at offset in the packet's
// header is proto (op CmpOpEq), or if the byte is not proto (op CmpOpNeq).
func (f family) carries(text string, offset uint32, op expr.CmpOp, proto byte) rule {
	return rule{text: text, exprs: append(f.load(offset, 1),
		&expr.Cmp{Op: op, Register: reg, Data: []byte{proto}},
		&expr.Verdict{Kind: expr.VerdictAccept})}
}
