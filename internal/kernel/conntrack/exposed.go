package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

const (
	attrStatus = 3 // CTA_STATUS, in network byte order
	// seenReply is IPS_SEEN_REPLY (linux/netfilter/nf_conntrack_common.h).
	seenReply = 1 << 1
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
// anew. One that kept its own source and was answered works as it is, and is left
// alone; one to where nothing goes is not.
//
// It takes as long as Forget.
func (t *Table) ForgetExposed(r Rules) error {
	in := func(a netip.Addr, list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return t.forget(func(entry []byte) bool {
		orig, reply, status := read(entry)
		if !in(orig.src, r.Pools) {
			return false
		}
		unhidden := r.Masquerade && orig.src == reply.dst && status&seenReply == 0 &&
			!in(reply.src, r.Pools) && !in(reply.src, r.Excluded)
		return unhidden || in(reply.src, r.Blocked) && reply.srcPort != namePort
	})
}

// read reads an entry's addresses and its status.
func read(entry []byte) (orig, reply ends, status uint32) {
	for len(entry) > 0 {
		typ, value, rest := next(entry)
		entry = rest
		switch {
		case typ == attrOrig:
			orig = endsOf(value)
		case typ == attrReply:
			reply = endsOf(value)
		case typ == attrStatus && len(value) == 4:
			status = binary.BigEndian.Uint32(value)
		}
	}
	return orig, reply, status
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
