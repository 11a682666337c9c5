package hostile

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// A pod sends each sort of frame with each sort of source: other pods', the
// node's, loopback's, nobody's, multicast's; to everybody; tagged, in fragments, in
// tunnels, with source routes; and ARP, neighbour and router messages that lie.
//
// Only packets with the pod's own address pass into the node or through it. The node tracks
// nothing in another's name, and learns no neighbour and no route (t1.sh).
func TestForeignSources(t *testing.T) {
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	p, w := newProbe(t, a.host), a.wire(t)
	routes := func() nettest.State { return nettest.Snapshot(t, nil).Only("route", "rule", "neigh") }
	before := routes()

	for _, frame := range foreign(a, b, w.mac) {
		w.send(frame)
	}
	p.settled(w, a)

	own := []string{a.ip4.String(), a.ip6.String()}
	for _, where := range []string{into, through} {
		for _, passed := range p.passed(where) {
			src := netip.MustParseAddr(strings.Fields(passed)[0])
			switch {
			case slices.Contains(own, src.String()):
			case where == into && src == netip.IPv6Unspecified() && strings.HasSuffix(passed, "ipv6-icmp"): // a pod that looks for duplicates has no address yet
			default:
				t.Errorf("passed %s the node: %s", where, passed)
			}
		}
	}
	tracked := nettest.Snapshot(t, nil).Only("conntrack").String()
	for line := range strings.SplitSeq(tracked, "\n") {
		if _, after, ok := strings.Cut(line, "src "); ok && !slices.Contains(own, strings.Fields(after)[0]) {
			src := netip.MustParseAddr(strings.Fields(after)[0])
			if !src.IsLinkLocalUnicast() && src != netip.IPv6Unspecified() && !slices.Contains([]netip.Addr{node4, node6}, src) {
				t.Errorf("tracked: %s", line)
			}
		}
	}
	nettest.Same(t, before, routes(), "the node has learnt from a pod")
	n.Audit(t)
}

// foreign are frames of pod a with b for a victim; mac is that of a's eth0.
func foreign(a, b *pod, mac net.HardwareAddr) (frames [][]byte) {
	parse := func(list ...string) (addrs []netip.Addr) {
		for _, s := range list {
			addrs = append(addrs, netip.MustParseAddr(s))
		}
		return addrs
	}
	add := func(to net.HardwareAddr, packets ...[]byte) {
		for _, p := range packets {
			frames = append(frames, ether(to, mac, p))
		}
	}
	inner := udpPacket(b.ip4, lan4, 1, 2, "in a tunnel")
	sources := append(parse("127.0.0.1", "169.254.1.1", "0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "240.0.0.1",
		"10.88.15.200", "198.51.100.7", "10.88.15.255"), a.ip4, b.ip4, node4, lan4)
	targets := append(parse("127.0.0.1", "169.254.1.1", "224.0.0.1", "224.0.0.251", "239.1.1.1", "255.255.255.255",
		"10.88.15.255", "192.0.2.255", "10.88.9.9"), a.ip4, b.ip4, node4, lan4, far4)
	for _, to := range []net.HardwareAddr{a.mac, broadcast, {1, 0, 0x5e, 0, 0, 1}} {
		for _, src := range sources {
			for _, dst := range targets {
				datagram := udpPacket(src, dst, 1111, 53, "hello")
				add(to, datagram)
				frames = append(frames, vlan(to, mac, 0, datagram), vlan(to, mac, 5, datagram), ether(to, a.mac, datagram))
				if !slices.Equal(to, a.mac) {
					continue
				}
				long := udpPacket(src, dst, 1111, 53, strings.Repeat("x", 64))[20:]
				add(to, packet4(src, dst, udp, datagram[20:], slices.Concat([]byte{0x83, 7, 4}, b.ip4.AsSlice(), []byte{0}), 0),
					packet4(src, dst, udp, long[:40], nil, 1<<13), packet4(src, dst, udp, long[40:], nil, 5),
					icmpPacket(src, dst, 8, 0, make([]byte, 8)),
					icmpPacket(src, dst, 5, 1, slices.Concat(a.ip4.AsSlice(), udpPacket(node4, lan4, 1, 2, ""))), // redirect
					tcpPacket(src, dst, 1234, 80, syn, 1, 0),
					packet(src, dst, 4, inner), packet(src, dst, 47, slices.Concat([]byte{0, 0, 8, 0}, inner)))
			}
		}
	}
	sources = append(parse("2001:db8::2", "fe80::1", "fe80::bad", "::", "::1", "::ffff:10.88.0.2", "::10.88.0.2", "ff02::1", "fd00:88::dead"), a.ip6, b.ip6, node6)
	targets = append(parse("2001:db8::2", "ff02::1", "ff02::2", "ff02::fb", "fe80::1", "ff05::2", "ff01::1", "::1", "fd00:88::9"), a.ip6, b.ip6, node6)
	for _, to := range []net.HardwareAddr{a.mac, {0x33, 0x33, 0, 0, 0, 1}, broadcast} {
		for _, src := range sources {
			for _, dst := range targets {
				datagram := udpPacket(src, dst, 1111, 53, "hello")
				add(to, datagram, icmpPacket(src, dst, 128, 0, make([]byte, 4)),
					icmpPacket(src, dst, 133, 0, slices.Concat(make([]byte, 4), []byte{1, 1}, mac)),                                                   // who routes?
					icmpPacket(src, dst, 134, 0, slices.Concat([]byte{64, 0, 7, 8}, make([]byte, 8), []byte{1, 1}, mac)),                              // I do
					icmpPacket(src, dst, 135, 0, slices.Concat(make([]byte, 4), dst.AsSlice(), []byte{1, 1}, mac)),                                    // who has it?
					icmpPacket(src, dst, 136, 0, slices.Concat([]byte{0xe0, 0, 0, 0}, b.ip6.AsSlice(), []byte{2, 1}, mac)),                            // I do
					icmpPacket(src, dst, 137, 0, slices.Concat(make([]byte, 4), netip.MustParseAddr("fe80::bad").AsSlice(), lan6.AsSlice())),          // redirect
					packet(src, dst, 43, slices.Concat([]byte{udp, 2, 0, 1, 0, 0, 0, 0}, b.ip6.AsSlice(), datagram[40:])), packet(src, dst, 4, inner)) // source route; tunnel
			}
		}
	}
	for _, says := range parse("169.254.1.1", "0.0.0.0", "10.1.2.3", b.ip4.String(), node4.String(), lan4.String()) {
		for op := range byte(2) {
			arp := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op + 1}, mac, says.AsSlice(), a.mac, b.ip4.AsSlice())
			frames = append(frames, slices.Concat(broadcast, mac, []byte{8, 6}, arp), slices.Concat(a.mac, mac, []byte{8, 6}, arp))
		}
	}
	return frames
}

// A pod speaks to the node's loopback, with its own address, as loopback, and as nobody, on a
// node where somebody has turned route_localnet on: kube-proxy does. Programs that listen there
// hear nothing of it (t18.sh).
func TestLoopbackIsOutOfReach(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	p, w := newProbe(t, a.host), a.wire(t)
	sysctl(t, "ipv4/conf/all/route_localnet", "1")
	sysctl(t, "ipv4/conf/all/accept_source_route", "1")

	loop, nobody := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("0.0.0.0")
	all := netip.MustParseAddr("255.255.255.255")
	for _, pair := range [][2]netip.Addr{{a.ip4, loop}, {loop, node4}, {loop, loop}, {nobody, all}, {nobody, loop}, {nobody, node4}} {
		for _, to := range []net.HardwareAddr{a.mac, broadcast} {
			w.send(ether(to, w.mac, udpPacket(pair[0], pair[1], 68, 7777, "hear me")))
			w.send(ether(to, w.mac, tcpPacket(pair[0], pair[1], 68, 7777, syn, 1, 0)))
		}
	}
	w.send(ether(a.mac, w.mac, by(udpPacket(a.ip4, node4, 68, 7777, "hear me"), loop)))
	p.settled(w, a)
	for _, passed := range p.passed(into) {
		if from := strings.Fields(passed); from[0] != a.ip4.String() || strings.HasPrefix(from[1], "127.") {
			t.Errorf("the node hears %s", passed)
		}
	}
}

// A pod says by which segments its packet goes on, on a node where somebody has turned IPv6
// segment routing on for all links: to the node itself and from there outside, or to the
// metadata service. No such packet leaves the node; a packet without segments does.
func TestSegmentsLeadNowhere(t *testing.T) {
	sysctl(t, "ipv6/conf/all/seg6_enabled", "1")
	sysctl(t, "ipv6/conf/default/seg6_enabled", "1")
	n := newNode(t, plain)
	a := n.add("a")
	w, heard := a.wire(t), listen(t, n.lan)
	metadata := netip.MustParseAddr("fd00:ec2::254")
	nettest.Run(t, nil, "ip route add "+metadata.String()+"/128 via "+lan6.String())
	for _, last := range []netip.Addr{lan6, metadata} {
		for from := range uint16(3) {
			datagram := udpPacket(a.ip6, node6, 1000+from, 9000, "by segments")[40:]                     // sound to the node
			segments := slices.Concat([]byte{udp, 4, 4, 1, 1, 0, 0, 0}, last.AsSlice(), node6.AsSlice()) // RFC 8754, 2
			w.send(ether(a.mac, w.mac, packet(a.ip6, node6, 43, slices.Concat(segments, datagram))))
		}
	}
	nettest.Eventually(t, "what asks for no segments", func() bool {
		w.send(ether(a.mac, w.mac, udpPacket(a.ip6, lan6, 2000, 9001, "straight on")))
		return heard.count(func(s seen) bool { return s.dst == lan6 && s.proto == udp }) > 0
	})
	for _, s := range heard.all(func(s seen) bool { return s.src == a.ip6 || s.dst == metadata }) {
		t.Errorf("leaves the node: %s", s)
	}
	n.Audit(t)
}

// A pod asks by ARP for who is outside, or for itself, in others' names, on a node where
// somebody has made all links proxies for addresses elsewhere, or new links proxies for
// addresses behind the same link. The node notes none of these names as a neighbour.
func TestProxyNotesNobody(t *testing.T) {
	for name, wanted := range map[string]func(*pod) netip.Addr{
		"all/proxy_arp":           func(*pod) netip.Addr { return far4 },
		"default/proxy_arp_pvlan": func(a *pod) netip.Addr { return a.ip4 },
	} {
		t.Run(name, func(t *testing.T) {
			notesNobody(t, "ipv4/conf/"+name, func(w *wire, a *pod, _ byte, says []netip.Addr) {
				for _, who := range says {
					w.send(slices.Concat(a.mac, w.mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, w.mac, who.AsSlice(), make([]byte, 6), wanted(a).AsSlice()))
				}
			})
		})
	}
}

// A pod announces any addresses by ARP and by neighbour messages (RFC 9131), on a node where
// somebody has new links accept announcements. The node notes none of these addresses as a
// neighbour.
func TestAnnouncementsNoteNobody(t *testing.T) {
	for _, name := range []string{"ipv4/conf/default/arp_accept", "ipv6/conf/default/accept_untracked_na"} {
		t.Run(name, func(t *testing.T) {
			notesNobody(t, name, func(w *wire, a *pod, i byte, says []netip.Addr) {
				for _, who := range says {
					for op := range byte(2) {
						w.send(slices.Concat(broadcast, w.mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, op + 1}, w.mac, who.AsSlice(), w.mac, who.AsSlice()))
					}
				}
				target := netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x77, 15: i})
				w.send(ether(a.mac, w.mac, icmpPacket(a.ip6, node6, 136, 0, slices.Concat([]byte{0x20, 0, 0, 0}, target.AsSlice(), []byte{2, 1}, w.mac))))
			})
		})
	}
}

// notesNobody has a pod send 200 times in others' names, on a node with a setting, and
// fails if the node then has a neighbour on the pod's link that Berth has not set.
func notesNobody(t *testing.T, setting string, send func(w *wire, a *pod, i byte, says []netip.Addr)) {
	t.Helper()
	sysctl(t, setting, "1")
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	p, w := newProbe(t, a.host), a.wire(t)
	for i := range byte(200) {
		send(w, a, i, []netip.Addr{netip.AddrFrom4([4]byte{10, 77, 0, i}), b.ip4, lan4})
	}
	p.settled(w, a)
	for _, family := range []string{"-4", "-6"} {
		out, err := exec.Command(nettest.Program(t, "ip"), family, "neigh", "show", "dev", a.host).Output()
		must(t, err)
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, "PERMANENT") {
				t.Errorf("the node notes %s", strings.TrimSpace(line))
			}
		}
	}
	n.Audit(t)
}

// by returns a UDP packet of IPv4 that goes on to another address from its
// destination (loose source route, RFC 791, 3.1).
func by(packet []byte, to netip.Addr) []byte {
	src, dst := netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	return packet4(src, dst, udp, packet[20:], slices.Concat([]byte{0x83, 7, 4}, to.AsSlice(), []byte{0}), 0)
}

// sysctl sets a sysctl of the node's until the test ends.
func sysctl(t *testing.T, name, value string) {
	t.Helper()
	nettest.Sysctl(t, nil, name, value)
	t.Cleanup(func() { nettest.Sysctl(t, nil, name, "0") })
}

// A pod asks 169.254.169.254, where clouds keep a machine's credentials. Unless the node's
// configuration allows it, packets to 169.254/16 do not leave the node; packets to other
// addresses do (t1.sh, "f4 own").
func TestCloudMetadataIsOutOfReach(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	w, heard := a.wire(t), listen(t, n.lan)
	metadata := []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("169.254.170.2")}
	for _, dst := range metadata {
		for i := range uint16(3) {
			w.send(ether(a.mac, w.mac, udpPacket(a.ip4, dst, 1000+i, 80, "who am I")))
			w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, dst, 1000+i, 80, syn, 1, 0)))
		}
	}
	nettest.Eventually(t, "what goes elsewhere", func() bool {
		w.send(ether(a.mac, w.mac, udpPacket(a.ip4, far4, 1000, 80, "hello")))
		return heard.count(func(s seen) bool { return s.dst == far4 && s.proto == udp }) > 0
	})
	for _, s := range heard.all(func(s seen) bool { return slices.Contains(metadata, s.dst) }) {
		t.Errorf("leaves the node: %s", s)
	}
}
