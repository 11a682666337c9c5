package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// dropTooBig drops what a link of a group tells the node about path MTUs. The node would believe such
// an error about its packets to any machine: the kernel needs no socket for packets that it answered by
// itself (icmp_err), and the pod need guess no port for sockets that speak with everybody. The node
// keeps the MTU for ten minutes, also for packets that it forwards to the same address. Pods are one
// hop away, and the node knows their MTU.
//
//	iifgroup 1073741824 icmp type destination-unreachable icmp code frag-needed drop
//	iifgroup 1073741824 icmpv6 type packet-too-big drop
func dropTooBig(group uint32, f family) rule {
	words, exprs := f.tooBig()
	return rule{
		text:  fmt.Sprintf("iifgroup %d %s drop", group, words),
		exprs: slices.Concat(enters(group), exprs, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// dropTooBigOfNothing also drops path MTU errors that the node gets by other links than the
// group's, if the errors belong to no connection: if they are about packets that nobody has sent, such
// as answers to echo requests. Otherwise one packet from anywhere could have the node split what pods
// and others send to an address into small packets. Errors about the node's own connections may be
// true. The test for errors comes first, so that other packets do not pay for ct.
//
//	icmp type destination-unreachable icmp code frag-needed ct state invalid,untracked drop
//	icmpv6 type packet-too-big ct state invalid,untracked drop
//
// Traffic that others have exempted from connection tracking (notrack) has no connection either. So
// the node believes no error about that traffic.
func dropTooBigOfNothing(f family) rule { return f.tooBigOfNothing("", nil) }

// dropTooBigOfNothingTo is dropTooBigOfNothing for errors that anybody sends to the links of a
// group: a pod's kernel would keep such an MTU for ten minutes as well, even if other pods have
// the addresses by then. An error about a connection may be true, because pods may forward to
// networks of their own.
//
//	oifgroup 1073741824 icmp type destination-unreachable icmp code frag-needed
//		ct state invalid,untracked drop
func dropTooBigOfNothingTo(group uint32, f family) rule {
	return f.tooBigOfNothing(fmt.Sprintf("oifgroup %d ", group), leavesBy(group))
}

// tooBigOfNothing returns the rule of dropTooBigOfNothing, for those packets that the parameter `only`
// lets through. `where` is the text of `only`.
func (f family) tooBigOfNothing(where string, only []expr.Any) rule {
	words, exprs := f.tooBig()
	return rule{
		text:  where + words + " ct state invalid,untracked drop",
		exprs: slices.Concat(only, exprs, ofNothing(), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// dropAboutOptions drops the node's own errors about hop-by-hop options. The kernel reads these
// options before prerouting (ip6_rcv_core), where all rules about what comes in begin. So the kernel
// tells whomever a packet names as its source about a wrong option, and sends most of the packet along:
// also if the packet came by a link that is cut off, or if the source is another pod's or blocked.
// Nothing shows, where the error goes out, by which link the packet came. So the rule lets nobody get
// such an error. An error is about these options if the packet in it begins with hop-by-hop options:
// byte 14, the next header, is 0.
//
//	icmpv6 type parameter-problem @th,112,8 0 drop
func dropAboutOptions() rule {
	const nextHeader = 8 + 6 // in the ICMP message: behind the ICMP header (8 bytes), in the IPv6 header of the packet
	load := func(at uint32) expr.Any {
		return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: at, Len: 1}
	}
	return rule{
		text: fmt.Sprintf("icmpv6 type parameter-problem @th,%d,8 0 drop", 8*nextHeader),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_ICMPV6}},
			load(0),
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{4}},
			load(nextHeader),
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{unix.IPPROTO_HOPOPTS}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		},
	}
}

// tooBig returns expressions that let a rule go on if a packet is an ICMP error that says that another
// packet was too big (RFC 1191, RFC 4443), and the text of these expressions.
func (f family) tooBig() (words string, exprs []expr.Any) {
	words, head := "icmp type destination-unreachable icmp code frag-needed", []byte{3, 4} // type and code
	if f.proto == ipv6.proto {
		words, head = "icmpv6 type packet-too-big", []byte{2}
	}
	return words, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{f.icmp}},
		&expr.Payload{
			OperationType: expr.PayloadLoad, DestRegister: reg,
			Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: uint32(len(head)),
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: head},
	}
}

// leastTold is the least MTU that an outside machine may hear from a pod about masqueraded
// traffic, in bytes: IPv6's (RFC 8200, 5).
const leastTold = 1280

// dropSmallMTU drops an error by which a link of a group tells a machine outside of a path with a
// small MTU, if masquerade would hide the sender. The machine believes that the path to the node's
// address has this MTU, and for ten minutes splits what it sends to that address, for all pods. Pods
// may need to tell of larger MTUs, because pods may forward. By IPv6 no machine believes in a smaller
// MTU.
//
//	iifgroup 1073741824 icmp type destination-unreachable icmp code frag-needed icmp mtu < 1280
//		ip saddr @pools4 ip daddr != @pools4 ip daddr != @excluded4 drop
func dropSmallMTU(group uint32) rule {
	told, isTold := ipv4.tooBig()
	words, leaves := ipv4.leaves()
	return rule{
		text: fmt.Sprintf("iifgroup %d %s icmp mtu < %d %s drop", group, told, leastTold, words),
		exprs: slices.Concat(enters(group), isTold, []expr.Any{
			&expr.Payload{
				OperationType: expr.PayloadLoad, DestRegister: reg,
				Base: expr.PayloadBaseTransportHeader, Offset: 6, Len: 2,
			},
			&expr.Cmp{Op: expr.CmpOpLt, Register: reg, Data: binary.BigEndian.AppendUint16(nil, leastTold)},
		}, leaves, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// dropMultipath removes MPTCP from the packets by which the links of a group begin TCP connections
// with the node, so that each connection is an ordinary one, no matter which end opens it. The
// kernel ends a pod's TCP connections with the node if the agent asks for that, but not MPTCP
// connections: the kernel waits a minute for another path (net.mptcp.close_timeout), and tells the
// node's program nothing.
//
// The first rule takes out a segment's first MPTCP option alone. No honest SYN has two such
// options, so the second rule drops a SYN that still has an MPTCP option. When the node has answered
// with a SYN cookie, the pod's ACK alone makes the connection MPTCP's (mptcp_subflow_init_cookie_req).
// An option that can do that has 20 bytes or more, so that the third rule looks for options in long
// headers only.
//
//	iifgroup 1073741824 tcp flags syn reset tcp option mptcp
//	iifgroup 1073741824 tcp flags syn tcp option mptcp exists drop
//	iifgroup 1073741824 tcp doff > 9 tcp option mptcp exists drop
func dropMultipath(group uint32) []rule {
	const mptcp = 30 // RFC 8684
	const short = 9  // words of 4 bytes: a header that has no room for such an option
	drop := []expr.Any{
		&expr.Exthdr{DestRegister: reg, Type: mptcp, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT, Op: expr.ExthdrOpTcpopt},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: []byte{1}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
	return []rule{
		{
			text:  fmt.Sprintf("iifgroup %d tcp flags syn reset tcp option mptcp", group),
			exprs: slices.Concat(enters(group), syn(expr.CmpOpNeq), []expr.Any{&resetOption{kind: mptcp}}),
		},
		{
			text:  fmt.Sprintf("iifgroup %d tcp flags syn tcp option mptcp exists drop", group),
			exprs: slices.Concat(enters(group), syn(expr.CmpOpNeq), drop),
		},
		{
			text: fmt.Sprintf("iifgroup %d tcp doff > %d tcp option mptcp exists drop", group, short),
			exprs: slices.Concat(enters(group), tcpBits(12, 0xf0),
				[]expr.Any{&expr.Cmp{Op: expr.CmpOpGt, Register: reg, Data: []byte{short << 4}}}, drop),
		},
	}
}
