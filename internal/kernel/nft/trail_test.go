package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// message returns a message in which the kernel tells of a traced packet.
func message(table, chain string, id uint32, more ...netlink.Attribute) []byte {
	var r request
	attrs := append([]netlink.Attribute{
		attr(unix.NFTA_TRACE_TABLE, table), attr(unix.NFTA_TRACE_CHAIN, chain), attr32(unix.NFTA_TRACE_ID, id),
		attr32(unix.NFTA_TRACE_TYPE, unix.NFT_TRACETYPE_RULE),
	}, more...)
	return append([]byte{unix.NFPROTO_INET, 0, 0, 0}, r.encode(attrs)...)
}

// ourTrail follows echos with a token, and a TCP connection to port 53.
func ourTrail() *Trail {
	return &Trail{name: "probe-1", token: [8]byte{7, 7, 7}, segments: []Segments{{From: 40000, To: 53}}, known: map[uint32]origin{}}
}

func heard(f *Trail, raw []byte) (Sight, bool) {
	return f.sight(netlink.Message{Header: netlink.Header{Type: messageType(unix.NFT_MSG_TRACE)}, Data: raw})
}

// network returns the attribute of a trace that has the packet's IPv4 header.
func network(from, to netip.Addr) netlink.Attribute {
	h := slices.Concat([]byte{0x45}, make([]byte, 11), from.AsSlice(), to.AsSlice())
	return netlink.Attribute{Type: unix.NFTA_TRACE_NETWORK_HEADER, Data: h}
}

// transport returns the attribute of a trace that has the packet's transport header.
func transport(header ...byte) netlink.Attribute {
	return netlink.Attribute{Type: unix.NFTA_TRACE_TRANSPORT_HEADER, Data: append(header, make([]byte, 20-len(header))...)}
}

// A Trail knows a packet by its headers where the trail's own chains see it first, and from then on by
// the kernel's number, whatever masquerade makes of the headers. Packets that others trace belong to no
// probe.
func TestSight(t *testing.T) {
	f := ourTrail()
	asked, answered := transport(8, 0, 0, 0, 1, 2, 3, 4, 7, 7, 7), transport(129, 0, 0, 0, 1, 2, 3, 4, 7, 7, 7)
	pod, node, far := netip.MustParseAddr("10.88.0.2"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	dropped := verdict(0)
	echo := Packet{ID: 0x01020304, From: pod, To: far}
	masqueraded := Packet{ID: 0x09090304, From: node, To: far}
	reply := Packet{ID: echo.ID, Reply: true}
	segments := Packet{ID: 40000<<16 | 53}
	answer := Packet{ID: segments.ID, Reply: true}
	for _, c := range []struct {
		what string
		raw  []byte
		want Sight
		ok   bool
	}{
		{"a drop of a packet that is not known", message("fw", "fwd", 1, dropped), Sight{}, false},
		{"a request", message("probe-1", "prerouting-first", 1, asked, network(pod, far), attr32(unix.NFTA_TRACE_IIF, 5)), Sight{Packet: echo, In: 5, Hook: "prerouting", Now: echo}, true},
		{"the request, masqueraded", message("probe-1", "postrouting-last", 1, transport(8, 0, 0, 0, 9, 9, 3, 4, 7, 7, 7), network(node, far)),
			Sight{Packet: echo, In: 5, Hook: "postrouting", Last: true, Now: masqueraded}, true},
		{"its drop", message("fw", "fwd", 1, dropped, netlink.Attribute{Type: unix.NFTA_TRACE_RULE_HANDLE, Data: binary.BigEndian.AppendUint64(nil, 9)}),
			Sight{Packet: echo, In: 5, Drop: &Drop{"inet", "fw", "fwd", 9}}, true},
		{"what a rule did not drop", message("fw", "fwd", 1, verdict(1)), Sight{}, false},
		{"a packet to which the kernel gives the same number", message("probe-1", "prerouting-first", 1, transport(8, 0, 0, 0, 9, 9, 9, 9, 7, 7, 7), attr32(unix.NFTA_TRACE_IIF, 6)),
			Sight{Packet: Packet{ID: 0x09090909}, In: 6, Hook: "prerouting", Now: Packet{ID: 0x09090909}}, true},
		{"a reply", message("probe-1", "input-first", 2, answered), Sight{Packet: reply, Hook: "input", Now: reply}, true},
		{"a segment that masquerade has changed", message("probe-1", "postrouting-last", 3, transport(0x90, 0x01, 0, 53)), Sight{Packet: segments, Hook: "postrouting", Last: true, Now: segments}, true},
		{"its answer", message("probe-1", "prerouting-first", 4, transport(0, 53, 0x90, 0x01)), Sight{Packet: answer, Hook: "prerouting", Now: answer}, true},
		{"a packet of somebody else", message("probe-1", "prerouting-first", 5, transport(0, 54, 0x90, 0x01)), Sight{}, false},
	} {
		got, ok := heard(f, c.raw)
		if got.Drop != nil && c.want.Drop != nil && *got.Drop == *c.want.Drop {
			got.Drop = c.want.Drop
		}
		if got != c.want && ok || ok != c.ok {
			t.Errorf("%s: %+v, %t; want %+v, %t", c.what, got, ok, c.want, c.ok)
		}
	}
}

// Whatever is in a trace, reading it does not panic.
func FuzzSight(f *testing.F) {
	f.Add(message("probe-1", "prerouting-first", 1, transport(8)))
	f.Add(message("fw", "fwd", 1, verdict(0)))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		trail := ourTrail()
		trail.known[1] = origin{Packet: Packet{ID: 1}}
		heard(trail, raw)
	})
}

// verdict returns the attribute of a trace that has a rule's verdict.
func verdict(code uint32) netlink.Attribute {
	return new(request).nest(unix.NFTA_TRACE_VERDICT, attr32(unix.NFTA_VERDICT_CODE, code))
}
