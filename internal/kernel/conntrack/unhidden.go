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

// ForgetUnhidden deletes the entries of what goes from pools to neither pools nor
// excluded with its own source, and that nobody has answered. The kernel decides
// about a source once, for a connection's first packet: one that began while no
// masquerade was there, since somebody had flushed it, would go out as it is for as
// long as it sends, and hear nothing. Its next packet begins it anew. One that was
// answered works as it is.
//
// It takes as long as Forget.
func (t *Table) ForgetUnhidden(pools, excluded []netip.Prefix) error {
	in := func(a netip.Addr, list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return t.forget(func(entry []byte) bool {
		var orig, reply ends
		var status uint32
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
		return status&seenReply == 0 && orig.src == reply.dst && in(orig.src, pools) &&
			!in(reply.src, pools) && !in(reply.src, excluded)
	})
}

// ends are the addresses of one direction of an entry.
type ends struct{ src, dst netip.Addr }

func endsOf(tuple []byte) (e ends) {
	for len(tuple) > 0 {
		typ, ips, rest := next(tuple)
		tuple = rest
		for typ == attrTupleIP && len(ips) > 0 {
			at, raw, rest := next(ips)
			ips = rest
			switch a, _ := netip.AddrFromSlice(raw); at {
			case 1, 3: // CTA_IP_V4_SRC, CTA_IP_V6_SRC
				e.src = a
			case 2, 4:
				e.dst = a
			}
		}
	}
	return e
}
