package hostile

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// trailing is a packet with a byte behind the end that UDP's length names.
func trailing(packet []byte) []byte {
	p := append(slices.Clone(packet), 'x')
	if p[0]>>4 == 6 {
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
		return p
	}
	src, dst := netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
	return packet4(src, dst, udp, p[20:], nil, 0)
}

// endless is an IPv6 packet whose UDP length is 0, as a jumbogram's (RFC 2675, 4). The checksum is right all the same.
func endless(packet []byte) []byte {
	p := slices.Clone(packet)
	src, dst := netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	binary.BigEndian.PutUint32(p[44:], 0) // length and checksum
	withSum(src, dst, udp, p[40:], 6)
	return p
}

// A pod, or a machine outside, sends another pod and the node datagrams that connection tracking calls invalid, and a receiver
// does not: with a byte behind the end, or with no length. Nobody answers: nothing counts as the receiver's own connection.
func TestDatagramsAreReadByAllAlike(t *testing.T) {
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	w, outside := a.wire(t), n.uplinkWire(t)
	serve := func(addr netip.Addr, at *pod) netip.AddrPort {
		network := "udp4"
		if addr.Is6() {
			network = "udp6"
		}
		if at == nil {
			return nettest.Serve(t, nil, network, netip.AddrPortFrom(addr, 0).String())
		}
		return nettest.Serve(t, at.at, network, netip.AddrPortFrom(addr, 0).String())
	}
	node4, node6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	lan4, lan6 := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	servers := map[bool][2]netip.AddrPort{
		false: {serve(b.ip4, b), serve(node4, nil)},
		true:  {serve(b.ip6, b), serve(node6, nil)},
	}
	for ipv6, to := range servers {
		own, away, forms := a.ip4, lan4, []func([]byte) []byte{trailing}
		if ipv6 {
			own, away, forms = a.ip6, lan6, []func([]byte) []byte{trailing, endless}
		}
		for i, form := range forms {
			for port := range uint16(50) {
				port += 2000 + 100*uint16(i)
				for _, server := range to {
					w.send(ether(a.mac, w.mac, form(udpPacket(own, server.Addr(), port, server.Port(), "hello"))))
				}
				outside(form(udpPacket(away, to[0].Addr(), port, to[0].Port(), "hello")))
			}
		}
		network := map[bool]string{false: "udp4", true: "udp6"}[ipv6]
		for _, server := range to {
			if _, err := nettest.Talk(a.at, network, server, 5*time.Second); err != nil {
				t.Errorf("a plain datagram to %s: %v", server, err)
			}
		}
		if _, err := nettest.Talk(n.lan, network, to[0], 5*time.Second); err != nil {
			t.Errorf("a plain datagram from outside to %s: %v", to[0], err)
		}
		for _, server := range to {
			if n := begun(t, server.Addr()); n > 0 {
				t.Errorf("%s has begun %d connections", server, n)
			}
		}
	}
}
