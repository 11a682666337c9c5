package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
)

// dropTooBig drops what a link of a group tells the node about path MTUs. The node would
// believe it about a packet to anybody: the kernel needs no socket for what it answered by
// itself (icmp_err), nor a port to guess for sockets that speak with everybody. It keeps
// the MTU for ten minutes, also for what it forwards there. Pods are one hop away, and the
// node knows their MTU.
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

// dropTooBigOfNothing drops what a link of a group tells another one about path MTUs, if it
// is about no connection: a pod could say so about packets of another's to anybody, which
// were never sent, and the other's kernel would keep it for ten minutes. What is about a
// connection may be true, because pods may forward to networks of their own.
//
//	iifgroup 1073741824 oifgroup 1073741824 ct state invalid,untracked
//		icmp type destination-unreachable icmp code frag-needed drop
func dropTooBigOfNothing(group uint32, f family) rule {
	words, exprs := f.tooBig()
	return rule{
		text:  fmt.Sprintf("iifgroup %[1]d oifgroup %[1]d ct state invalid,untracked %[2]s drop", group, words),
		exprs: slices.Concat(enters(group), leavesBy(group), ofNothing(), exprs, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// tooBig lets a rule go on if a packet is an ICMP error that says that another one was too
// big (RFC 1191, RFC 4443). It returns the rule's text, too.
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

// dropMultipath takes MPTCP out of what the links of a group say to the node when a TCP
// connection begins, so that it is an ordinary one, whoever opens it. The kernel ends a
// pod's TCP connections with the node if it is told to, but not MPTCP's: it waits a minute
// for another path (net.mptcp.close_timeout), and the node's program is told nothing.
//
//	iifgroup 1073741824 tcp flags syn reset tcp option mptcp
func dropMultipath(group uint32) rule {
	const mptcp = 30 // RFC 8684
	return rule{
		text:  fmt.Sprintf("iifgroup %d tcp flags syn reset tcp option mptcp", group),
		exprs: slices.Concat(enters(group), syn(expr.CmpOpNeq), []expr.Any{&resetOption{kind: mptcp}}),
	}
}
