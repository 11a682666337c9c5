package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Attributes of an entry (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	attrOrig  = 1  // CTA_TUPLE_ORIG, nested
	attrReply = 2  // CTA_TUPLE_REPLY, nested
	attrProto = 4  // CTA_PROTOINFO, nested
	attrID    = 12 // CTA_ID: a number that no other entry ever has
	attrZone  = 18 // CTA_ZONE

	attrTupleIP    = 1 // CTA_TUPLE_IP, nested in a tuple
	attrTupleProto = 2 // CTA_TUPLE_PROTO, nested in a tuple, too

	// Nested in CTA_TUPLE_IP are CTA_IP_V4_SRC and _DST, 1 and 2, and
	// CTA_IP_V6_SRC and _DST, 3 and 4.

	attrProtoTCP = 1 // CTA_PROTOINFO_TCP, nested in CTA_PROTOINFO
	attrTCPState = 1 // CTA_PROTOINFO_TCP_STATE, nested in CTA_PROTOINFO_TCP: one byte

	tcpTimeWait = 7 // TCP_CONNTRACK_TIME_WAIT (nf_conntrack_tcp.h)
	tcpClose    = 8 // TCP_CONNTRACK_CLOSE

	attrType = 0x3fff // masks off the bits of a type that say how the attribute is encoded
)

// involves reports whether an entry, given as its attributes, names an address for which the function `is`
// returns true. It looks at both directions, because with NAT an address may be in one direction only.
func involves(entry []byte, is func(netip.Addr) bool) bool {
	for len(entry) > 0 {
		typ, value, rest := next(entry)
		entry = rest
		if (typ == attrOrig || typ == attrReply) && tupleInvolves(value, is) {
			return true
		}
	}
	return false
}

func tupleInvolves(tuple []byte, is func(netip.Addr) bool) bool {
	for len(tuple) > 0 {
		typ, ips, rest := next(tuple)
		tuple = rest
		if typ != attrTupleIP {
			continue
		}
		for len(ips) > 0 {
			_, raw, rest := next(ips)
			ips = rest
			if a, ok := netip.AddrFromSlice(raw); ok && is(a) {
				return true
			}
		}
	}
	return false
}

// names appends to out the attributes of an entry that tell the entry from all others.
func names(out, entry []byte) []byte {
	for len(entry) > 0 {
		typ, _, rest := next(entry)
		if typ == attrOrig || typ == attrID || typ == attrZone {
			out = append(out, entry[:len(entry)-len(rest)]...) // with its header and padding
		}
		entry = rest
	}
	return out
}

// next returns the type and value of the first attribute in b, and the attributes behind
// it. If b does not begin with a whole attribute, rest is empty.
func next(b []byte) (typ uint16, value, rest []byte) {
	if len(b) < unix.SizeofNlAttr {
		return 0, nil, nil
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < unix.SizeofNlAttr || size > len(b) {
		return 0, nil, nil
	}
	typ = binary.NativeEndian.Uint16(b[2:]) & attrType
	return typ, b[unix.SizeofNlAttr:size], b[min((size+3)&^3, len(b)):]
}
