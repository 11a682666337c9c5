package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// heads are the parts of a transport's header that copyHeads writes back, in bytes: an ICMP header;
// behind this header, as far as an ICMP error has them, the IPv4 header and the ports of the packet
// that the error is about; and the same for IPv6.
var heads = []writeBack{
	{offset: 4, size: 4, register: reg}, {offset: 20, size: 16, register: reg}, {offset: 40, size: 16, register: reg},
}

// copyHeads copies what the rules read of a live link's packet into memory that only the kernel
// writes. A pod can send packets whose contents stay in its own pages (PACKET_TX_RING, splice),
// and change the contents until somebody reads them for the last time: the rules could see an echo
// request, and the receiver an error. If a rule writes bytes of a packet, the kernel copies all bytes
// before them, even if the rule writes the same bytes (nft_payload_set_eval, skb_ensure_writable).
//
//	iifgroup != 1073741824 accept
//	ip protocol != icmp accept
//	ip6 nexthdr tcp accept
//	ip6 nexthdr udp accept
//	@th,32,32 set @th,32,32
//	@th,160,128 set @th,160,128
//	@th,320,128 set @th,320,128
//
// A packet that is too short for a rule, or is a fragment without the beginning, passes unchanged. IPv6
// may have further headers before ICMP, and a pod can change these headers, too. So the rules copy
// everything of IPv6 but plain TCP and UDP. The receiver's kernel (early demux) or the rewriting of
// ports copies TCP and UDP headers.
func copyHeads(group uint32) []rule {
	rules := []rule{
		acceptOthers(group),
		ipv4.carries("ip protocol != icmp accept", 9, expr.CmpOpNeq, unix.IPPROTO_ICMP),
		ipv6.carries("ip6 nexthdr tcp accept", 6, expr.CmpOpEq, unix.IPPROTO_TCP),
		ipv6.carries("ip6 nexthdr udp accept", 6, expr.CmpOpEq, unix.IPPROTO_UDP),
	}
	for _, h := range heads {
		at := fmt.Sprintf("@th,%d,%d", 8*h.offset, 8*h.size)
		rules = append(rules, rule{
			text: at + " set " + at,
			exprs: []expr.Any{
				&expr.Payload{
					OperationType: expr.PayloadLoad, DestRegister: reg,
					Base: expr.PayloadBaseTransportHeader, Offset: h.offset, Len: h.size,
				},
				&h,
			},
		})
	}
	return rules
}

// extensions are the next headers behind which connection tracking looks for the transport (ipv6_ext_hdr).
var extensions = []byte{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_NONE, unix.IPPROTO_DSTOPTS}

// dontTrack keeps connection tracking from what a live link sends by IPv6 behind an extension header. Rules take an
// authentication header (AH, RFC 4302) for the transport (nft_set_pktinfo_ipv6), and connection tracking and the
// rewriting of ports look behind it (ipv6_skip_exthdr). And a pod can change extension headers while the packet passes:
// copyHeads copies them only as far as it finds a transport. So a pod could open connections, get ports of the node,
// and send errors, and no rule about TCP, UDP, SCTP or ICMP would see it. What is not tracked leaves the node by no
// other address than the pod's own. The IPv6 header itself is the kernel's own copy (ip6_rcv_core), and joined
// fragments have no fragment header any more.
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
