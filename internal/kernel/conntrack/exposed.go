package conntrack

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/cidrs"

	"golang.org/x/sys/unix"
)

// Rules are the agent's rules that the kernel applies only to a connection's first packet.
type Rules struct {
	Pools      []netip.Prefix // the rules are about connections from these CIDRs
	Masquerade bool           // connections to a destination outside Pools and Excluded get another source address
	Excluded   cidrs.Set
	Blocked    []netip.Prefix // no connection goes to these CIDRs, except questions to name servers
	HostPort   HostPort       // nil: no port of the node leads to a pod
	Leads      Led            // whether a port of the node leads to a pod's port; nil: none does
	Missed     bool           // the rules were missing for a while, or may have been
}

// Mapped returns the pod's port to which a port of the node (of tcp, udp or sctp) leads; false if it leads to
// none.
type Mapped func(protocol string, at netip.AddrPort) (netip.AddrPort, bool)

// Led reports whether a port of the node (of tcp, udp or sctp) leads, or has led, to a port of an address.
type Led func(protocol string, at, to netip.AddrPort) bool

// HostPort reports whether a port of the node (of tcp, udp or sctp) leads to a pod.
type HostPort func(protocol string, at netip.AddrPort) bool

// ForgetExposed deletes the entries of connections that would not have begun, or not in this way, if
// the rules had been there. Such connections began while the rules were missing, for example after
// somebody had flushed the agent's nftables table, and would go on for as long as they send. After the
// deletion, their next packet begins a new connection, under the rules.
//
// ForgetExposed also deletes such connections if they were answered: while the rules are missing a pod
// can forge the answer, or forge a connection from a blocked address and answer it later. ForgetExposed
// spares connections that end at the node itself, because these keep their source under the rules, too.
//
// If Missed is set, ForgetExposed also deletes entries between a pod and another pod, or the node, if
// no NAT has touched them and their protocol has no handshake: while the rules are missing, another pod
// can make such entries in the pod's name, and the other end can keep them. Among these entries there
// may be true connections. They begin anew with their next packet, but count for the pod that sends the
// packet: the pod at the other end may then have more connections than it began
// (nft.Ruleset.Connections). ForgetExposed spares TCP, SCTP and DCCP, because a pod may have more such
// connections than the rules let it resume. It also spares connections by a service's address, because
// their next packet may get another destination.
//
// If Missed is set, ForgetExposed also deletes flows of UDP that a port of the node has led to an address of Pools, and does
// not lead there now (Leads): somebody may have brought back an older table. If another program's rules have led them there, their
// next packet begins anew by these.
//
// ForgetExposed also deletes flows to a host port that go to the node itself, because they began before
// the agent mapped the port, or without the table: after the deletion their next packet goes to the
// host port's pod. It spares TCP, because a TCP connection that began so has ended, or is with a
// program of the node.
//
// For the same reason it deletes flows to which masquerade has given a port that is a host port now, also
// those of other agents' pods: the machine at the flow's other end could not reach the host port's pod from
// the port that the machine uses in that flow. ForgetExposed spares TCP: the connections would end, and few
// clients choose their own port.
//
// It takes as long as Forget.
func (t *Table) ForgetExposed(r Rules) error {
	own, err := t.localAddrs()
	if err != nil {
		return fmt.Errorf("listing the node's addresses: %w", err)
	}
	in := func(a netip.Addr, list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return t.forget(func(entry []byte) bool {
		orig, reply := read(entry)
		if r.HostPort.precedes(own, orig, reply) ||
			r.Missed && own[orig.dst] && in(reply.src, r.Pools) && orig.proto == unix.IPPROTO_UDP && r.Leads.misses(orig, reply) {
			return true
		}
		if !in(orig.src, r.Pools) {
			return in(orig.src, r.Blocked) && !own[orig.src] && in(reply.src, r.Pools)
		}
		unhidden := r.Masquerade && orig.src == reply.dst && !own[reply.src] &&
			!in(reply.src, r.Pools) && !r.Excluded.Contains(reply.src)
		inside := r.Missed && untranslated(orig, reply) && !orig.handshake() && (own[reply.src] || in(reply.src, r.Pools))
		return unhidden || inside || in(reply.src, r.Blocked) && reply.srcPort != namePort && !own[reply.src]
	})
}

// ForgetMapped deletes the flows of UDP and SCTP that have one of these host ports from before it was
// mapped: flows that go to the node itself, flows that the port led to another address than its pod's, and
// flows to which masquerade has given the port, unless the node itself began them. It deletes nothing else: a flow that the rules have let begin
// counts for the pod that began it, and would count for the other end if the other end began it
// anew.
//
// It also deletes the connections that a port of the node has led elsewhere by mistake.
//
// It takes as long as Forget.
func (t *Table) ForgetMapped(mapped Mapped, led Led) error {
	own, err := t.localAddrs()
	if err != nil {
		return fmt.Errorf("listing the node's addresses: %w", err)
	}
	port := HostPort(func(protocol string, at netip.AddrPort) bool { _, ok := mapped(protocol, at); return ok })
	return t.forget(func(entry []byte) bool {
		orig, reply := read(entry)
		return port.precedes(own, orig, reply) || mapped.misses(own, orig, reply) || led.astray(orig, reply)
	})
}

// misses reports whether a connection goes where no port of the node leads, and where it was not sent.
func (l Led) misses(orig, reply ends) bool {
	leads := func(protocol string, at, to netip.AddrPort) bool { return l == nil || !l(protocol, at, to) }
	return Led(leads).astray(orig, reply)
}

// astray reports whether a connection goes where a port of the node has led by mistake.
func (l Led) astray(orig, reply ends) bool {
	protocol := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}[orig.proto]
	return protocol != "" && orig.dst != reply.src &&
		l(protocol, netip.AddrPortFrom(orig.dst, orig.dstPort), netip.AddrPortFrom(reply.src, reply.srcPort))
}

// misses reports whether a flow of UDP or SCTP to a host port goes to another address than that of the
// port's pod. `own` are the node's addresses.
func (m Mapped) misses(own map[netip.Addr]bool, orig, reply ends) bool {
	if !own[orig.dst] || untranslated(orig, reply) {
		return false
	}
	var pod netip.AddrPort
	leads := HostPort(func(protocol string, at netip.AddrPort) (ok bool) { pod, ok = m(protocol, at); return ok })
	return leads.leads(orig.proto, orig.dst, orig.dstPort) && pod.Addr() != reply.src
}

// precedes reports whether a flow has a host port from before that port was mapped: the flow goes to the
// node itself, or masquerade has given it the port. `own` are the node's addresses.
func (h HostPort) precedes(own map[netip.Addr]bool, orig, reply ends) bool {
	return own[orig.dst] && untranslated(orig, reply) && h.leads(orig.proto, orig.dst, reply.srcPort) ||
		own[reply.dst] && !own[orig.src] && h.leads(orig.proto, reply.dst, reply.dstPort)
}

// leads reports whether datagrams to a port of the node go to a pod.
func (h HostPort) leads(proto byte, to netip.Addr, port uint16) bool {
	if h == nil {
		return false
	}
	at := netip.AddrPortFrom(to, port)
	return proto == unix.IPPROTO_UDP && h("udp", at) || proto == unix.IPPROTO_SCTP && h("sctp", at)
}

// localAddrs returns the addresses of the namespace's links.
func (t *Table) localAddrs() (map[netip.Addr]bool, error) {
	var list []net.Addr
	if err := t.at.Do(func() (err error) { list, err = net.InterfaceAddrs(); return err }); err != nil {
		return nil, err
	}
	own := map[netip.Addr]bool{}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			addr, _ := netip.AddrFromSlice(n.IP)
			own[addr.Unmap()] = true
		}
	}
	return own, nil
}

// read reads the ends of an entry's two directions.
func read(entry []byte) (orig, reply ends) {
	for len(entry) > 0 {
		typ, value, rest := next(entry)
		entry = rest
		switch typ {
		case attrOrig:
			orig = endsOf(value)
		case attrReply:
			reply = endsOf(value)
		}
	}
	return orig, reply
}

// namePort is the port of name servers, for UDP and TCP.
const namePort = 53

// untranslated reports whether no NAT has touched a connection's addresses.
func untranslated(orig, reply ends) bool { return orig.src == reply.dst && orig.dst == reply.src }

// ends are the addresses of one direction of an entry, its protocol, and its ports, if the
// protocol has ports.
type ends struct {
	src, dst         netip.Addr
	proto            byte
	srcPort, dstPort uint16
}

// handshake reports whether connections of the protocol begin with a handshake.
func (e ends) handshake() bool {
	return e.proto == unix.IPPROTO_TCP || e.proto == unix.IPPROTO_SCTP || e.proto == unix.IPPROTO_DCCP
}

func endsOf(tuple []byte) (e ends) {
	for len(tuple) > 0 {
		part, inside, rest := next(tuple)
		tuple = rest
		for len(inside) > 0 {
			at, raw, rest := next(inside)
			inside = rest
			a, isAddr := netip.AddrFromSlice(raw)
			switch {
			case part == attrTupleIP && isAddr && (at == 1 || at == 3): // CTA_IP_V4_SRC, CTA_IP_V6_SRC
				e.src = a
			case part == attrTupleIP && isAddr:
				e.dst = a
			case part == attrTupleProto && at == 1 && len(raw) == 1: // CTA_PROTO_NUM
				e.proto = raw[0]
			case part == attrTupleProto && at == 2 && len(raw) == 2: // CTA_PROTO_SRC_PORT
				e.srcPort = binary.BigEndian.Uint16(raw)
			case part == attrTupleProto && at == 3 && len(raw) == 2: // CTA_PROTO_DST_PORT
				e.dstPort = binary.BigEndian.Uint16(raw)
			}
		}
	}
	return e
}
