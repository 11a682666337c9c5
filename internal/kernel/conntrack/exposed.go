package conntrack

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Rules are what decides about a connection's first packet alone.
type Rules struct {
	Pools      []netip.Prefix // whose connections are meant: those from here
	Masquerade bool           // what goes to neither Pools nor Excluded gets another source
	Excluded   []netip.Prefix
	Blocked    []netip.Prefix // nothing goes here, but questions to name servers
}

// ForgetExposed deletes the entries of connections that would not be so, had they
// begun under the rules: somebody had flushed the table that has them. Else they would
// go on like that for as long as they send. The next packet begins such a connection
// anew. That one was answered says nothing: a pod can forge the answer meanwhile, or a
// connection from a blocked address that it answers later. What ends at the node itself
// keeps its source under the rules, too, and is left alone.
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
		if !in(orig.src, r.Pools) {
			return in(orig.src, r.Blocked) && !own[orig.src] && in(reply.src, r.Pools)
		}
		unhidden := r.Masquerade && orig.src == reply.dst && !own[reply.src] &&
			!in(reply.src, r.Pools) && !in(reply.src, r.Excluded)
		return unhidden || in(reply.src, r.Blocked) && reply.srcPort != namePort && !own[reply.src]
	})
}

// localAddrs are the addresses of the namespace's links.
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

// read reads an entry's addresses.
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

// namePort is where name servers are asked, by UDP and TCP.
const namePort = 53

// ends are the addresses of one direction of an entry, and the port that it is from,
// where the protocol has any.
type ends struct {
	src, dst netip.Addr
	srcPort  uint16
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
			case part == attrTupleProto && at == 2 && len(raw) == 2: // CTA_PROTO_SRC_PORT
				e.srcPort = binary.BigEndian.Uint16(raw)
			}
		}
	}
	return e
}
