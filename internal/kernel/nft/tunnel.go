package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tunnel returns the chain that keeps the tunnel to other nodes, and its sets.
func (r Ruleset) tunnel() (sets []set, c chain) {
	c = chain{name: "tunnel_in", typ: "filter", hook: hookInput, priority: priorityFilter}
	for _, f := range []family{ipv4, ipv6} {
		c.rules = append(c.rules, f.dropTunnelled(r.TunnelPort))
	}
	return r.tunnels().sets(), c
}

// dropTunnelled drops what nobody but other nodes may send to the tunnel's port: the tunnel's device takes the packets within
// for those of other nodes' pods. A pod could send some in any pod's name otherwise. The node has joined fragments by
// then, because it tracks connections.
//
//	ip saddr != @tunnels4 udp dport 4789 drop
func (f family) dropTunnelled(port uint16) rule {
	from := "tunnels" + f.suffix
	exprs := append(f.protocol(), f.match(f.saddr, from, true)...)
	exprs = append(exprs, carriedBy(unix.IPPROTO_UDP)...)
	return rule{
		text: fmt.Sprintf("%s saddr != @%s udp dport %d drop", f.word, from, port),
		exprs: append(exprs,
			&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: binary.BigEndian.AppendUint16(nil, port)},
			&expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// beside returns the larger part of a range of ports that is left without a port.
func beside(first, last, port uint16) (uint16, uint16) {
	switch {
	case port < first || port > last:
		return first, last
	case port-first > last-port:
		return first, port - 1
	}
	return port + 1, last
}
