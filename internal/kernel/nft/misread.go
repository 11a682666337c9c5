package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/stamp"
)

// Connection tracking calls a datagram of UDP invalid if the checksum over all bytes of the packet is wrong, or UDP's length is
// 0 (nf_conntrack_proto_udp.c). A receiver takes the checksum over as many bytes as UDP's length names, and by IPv6 takes a
// length of 0 for a jumbogram's. So the receiver may answer a datagram that is not tracked. The answer would be tracked, as
// a connection that the receiver has begun.

// dropMisread drops such datagrams to a pod of any instance, whoever sends them.
//
//	oifgroup 1073741824-2147483647 meta l4proto udp ct state invalid drop
func dropMisread() rule {
	pods, toPods := inGroups("oifgroup", stamp.FirstGroup, stamp.LastGroup)
	return rule{text: pods + misreadText, exprs: slices.Concat(toPods, misread())}
}

// dropMisreadByNode drops such datagrams from a live link to the node: nobody's share would have the answers, which would fill
// the table of connections.
//
//	iifgroup 1073741824 meta l4proto udp ct state invalid drop
func dropMisreadByNode(group uint32) rule {
	return rule{text: fmt.Sprintf("iifgroup %d", group) + misreadText, exprs: slices.Concat(enters(group), misread())}
}

const misreadText = " meta l4proto udp ct state invalid drop"

func misread() []expr.Any {
	return slices.Concat(carriedBy(unix.IPPROTO_UDP), []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg},
		mask(expr.CtStateBitINVALID),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
		&expr.Verdict{Kind: expr.VerdictDrop},
	})
}
