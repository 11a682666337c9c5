package hostile

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// untracked6 are the kinds of ICMPv6 messages that connection tracking leaves alone:
// reports of multicast groups, router and neighbour messages (RFC 3810, RFC 4861), and
// messages of multicast routers (RFC 4286).
var untracked6 = []byte{130, 131, 132, 133, 134, 135, 136, 143, 151, 152}

// A pod sends what connection tracking calls invalid, and so does not translate: segments of no
// connection, impossible flags, a wrong checksum, errors about packets that nobody sent, an
// answer that nobody asked for. Nothing leaves the node with the pod's own address, in either
// family; what is valid leaves with the node's address (t2.sh). Packets that the kernel does not
// track at all do not leave with the pod's address either: messages between neighbours and about
// multicast groups, sent to somebody far away, also behind another header.
func TestInvalidStaysInside(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	w, heard := a.wire(t), listen(t, n.lan)

	wrongSum := tcpPacket(a.ip4, far4, 1002, 80, syn, 1, 0)
	wrongSum[36] ^= 0x55
	wrongSum6 := tcpPacket(a.ip6, lan6, 1002, 80, syn, 1, 0)
	wrongSum6[56] ^= 0x55
	packets := [][]byte{
		tcpPacket(a.ip4, far4, 1001, 80, syn|fin|rst, 1, 0),
		wrongSum,
		tcpPacket(a.ip4, far4, 1003, 80, rst|ack, 1, 0),
		tcpPacket(a.ip4, far4, 1004, 80, 0, 1, 0),
		icmpPacket(a.ip4, far4, 3, 3, slices.Concat(make([]byte, 4), udpPacket(far4, a.ip4, 5, 6, ""))),
		icmpPacket(a.ip4, far4, 0, 0, make([]byte, 8)),
		tcpPacket(a.ip6, lan6, 1001, 80, syn|fin|rst, 1, 0),
		wrongSum6,
		tcpPacket(a.ip6, lan6, 1003, 80, rst|ack, 1, 0),
		icmpPacket(a.ip6, lan6, 1, 4, slices.Concat(make([]byte, 4), udpPacket(lan6, a.ip6, 5, 6, ""))),
		icmpPacket(a.ip6, lan6, 129, 0, make([]byte, 4)),
	}
	for _, kind := range untracked6 {
		message := icmpPacket(a.ip6, lan6, kind, 0, make([]byte, 20))
		options := slices.Concat([]byte{icmp6, 0, 1, 4, 0, 0, 0, 0}, message[40:]) // padding alone
		packets = append(packets, message, packet(a.ip6, lan6, 60, options))
	}
	for _, packet := range packets {
		for range 3 {
			w.send(ether(a.mac, w.mac, packet))
		}
	}
	valid := func(s seen) bool { return s.src == node4 && s.dst == far4 && s.proto == udp }
	valid6 := func(s seen) bool { return s.src == node6 && s.dst == lan6 && s.proto == udp }
	nettest.Eventually(t, "what is valid", func() bool { // after the invalid packets on the same wire
		w.send(ether(a.mac, w.mac, udpPacket(a.ip4, far4, 1000, 53, "hello")))
		w.send(ether(a.mac, w.mac, udpPacket(a.ip6, lan6, 1000, 53, "hello")))
		return heard.count(valid) > 0 && heard.count(valid6) > 0
	})
	for _, s := range heard.all(func(s seen) bool { return s.src == a.ip4 || s.src == a.ip6 }) {
		t.Errorf("leaves the node with the pod's address: %s", s)
	}
}

// The node talks to somebody outside, and to its cloud's metadata service. A pod sends both of them
// errors about that talk, which connection tracking takes for a part of the node's connections. None
// of these errors leaves the node with the pod's address, and no packet of the pod goes to the
// metadata service. Errors about the pod's own connections leave with the node's address.
func TestErrorsAboutOthersConnectionsStayInside(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	metadata := netip.MustParseAddr("169.254.169.254")
	nettest.Run(t, n.lan, "ip addr add 169.254.169.254/32 dev lo")
	w, heard := a.wire(t), listen(t, n.lan)
	// lies sends errors about an answer, as if the answer had come from the address `there` to a port
	// of the asking program.
	lies := func(src, there, asker netip.Addr, port uint16) {
		answer := slices.Concat(make([]byte, 4), udpPacket(there, asker, 5000, port, "hello"))
		for range 3 {
			if src.Is4() {
				w.send(ether(a.mac, w.mac, icmpPacket(src, there, 3, 3, answer)))
			} else {
				w.send(ether(a.mac, w.mac, icmpPacket(src, there, 1, 4, answer)))
			}
		}
	}
	for _, c := range []struct{ there, own, src netip.Addr }{{lan4, node4, a.ip4}, {metadata, node4, a.ip4}, {lan6, node6, a.ip6}} {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.there, 5000)))
		must(t, err)
		defer conn.Close()
		asked := func() bool {
			_, _ = conn.Write([]byte("hello")) // nobody listens there
			return heard.count(func(s seen) bool { return s.src == c.own && s.dst == c.there && s.proto == udp }) > 0
		}
		nettest.Eventually(t, "the node's question", asked)
		lies(c.src, c.there, c.own, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	}
	for _, c := range []struct {
		there, own, src netip.Addr
		proto           byte
	}{{lan4, node4, a.ip4, icmp4}, {lan6, node6, a.ip6, icmp6}} {
		nettest.Eventually(t, "an error about the pod's own connection", func() bool { // after all else on the same wire
			w.send(ether(a.mac, w.mac, udpPacket(c.src, c.there, 1000, 5000, "hello")))
			lies(c.src, c.there, c.src, 1000)
			return heard.count(func(s seen) bool { return s == seen{c.own, c.there, c.proto} }) > 0
		})
	}
	for _, s := range heard.all(func(s seen) bool { return s.src == a.ip4 || s.src == a.ip6 }) {
		t.Errorf("leaves the node with the pod's address: %s", s)
	}
	for _, s := range heard.all(func(s seen) bool { return s.dst == metadata && s.proto == icmp4 }) {
		t.Errorf("goes to the metadata service: %s", s)
	}
}
