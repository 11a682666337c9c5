package hostile

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// tooBig is an error that says that the packet was too big, for a path MTU of so many bytes
// (RFC 1191, RFC 4443).
func tooBig(src, dst netip.Addr, mtu uint16, packet []byte) []byte {
	body := slices.Concat([]byte{0, 0}, binary.BigEndian.AppendUint16(nil, mtu), packet)
	if src.Is6() {
		return icmpPacket(src, dst, 2, 0, body)
	}
	return icmpPacket(src, dst, 3, 4, body)
}

// lies are errors that say that the answer to a ping was too big for somebody.
func lies(src, they, somebody netip.Addr) []byte {
	kind, mtu := byte(0), uint16(100) // the kernel makes 552 of it
	if src.Is6() {
		kind, mtu = 129, 1280
	}
	return tooBig(src, they, mtu, icmpPacket(they, somebody, kind, 0, make([]byte, 36)))
}

// A pod sends packets whose hop-by-hop options are wrong, with sources that are not its own. The
// kernel would send these sources an error before any rule reads the packets, with the pod's bytes in
// the error (found by an attack of 2026-11-24).
func TestWrongOptionsAreNotAnswered(t *testing.T) {
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	w := a.wire(t)
	atLan, atB := listen(t, n.lan), listen(t, b.at)
	blocked := netip.MustParseAddr("fd00:ec2::254")
	far := netip.MustParseAddr("2001:db8:ffff::1")
	unknown, jumbo := []byte{0x9e, 4, 0, 0, 0, 0}, []byte{0xc2, 4, 0, 0, 0, 1}
	for _, option := range [][]byte{unknown, jumbo} {
		for _, src := range []netip.Addr{b.ip6, blocked, far} {
			datagram := udpPacket(src, node6, 7, 7, "secret")[40:]
			w.send(ether(a.mac, w.mac, packet(src, node6, 0, slices.Concat([]byte{udp, 0}, option, datagram))))
		}
	}
	for dst, tap := range map[netip.Addr]*tap{lan6: atLan, b.ip6: atB} {
		nettest.Eventually(t, "what is sent behind it", func() bool {
			w.send(ether(a.mac, w.mac, packet(a.ip6, dst, marker, make([]byte, 8))))
			return tap.count(func(s seen) bool { return s.dst == dst && s.proto == marker }) > 0
		})
		for _, s := range tap.all(func(s seen) bool { return s.src == node6 && slices.Contains([]netip.Addr{b.ip6, blocked, far}, s.dst) }) {
			t.Errorf("the node tells %s", s)
		}
	}
	n.wantGone()
}

// A pod tells the node that an answer of the node to somebody was too big: an answer to a
// machine far away, or to another pod. A third pod's packets, which must not be cut into
// pieces, still go whole to that machine or pod.
func TestPathMTUOfOthersIsNotAPodsToTell(t *testing.T) {
	n := newNode(t, plain)
	a, b, v := n.add("a"), n.add("b"), n.add("v")
	w, wb := a.wire(t), b.wire(t)
	big := strings.Repeat("x", 1400)
	atLan, atV := listen(t, n.lan), listen(t, v.at)
	for _, way := range []struct {
		liar, own, src, to, next netip.Addr
		heard                    *tap
	}{
		{a.ip4, node4, b.ip4, far4, v.ip4, atLan},
		{a.ip4, node4, b.ip4, v.ip4, v.ip4, atV},
		{a.ip6, node6, b.ip6, lan6, v.ip6, atLan},
		{a.ip6, node6, b.ip6, v.ip6, v.ip6, atV},
	} {
		there := func(proto byte) int {
			return way.heard.count(func(s seen) bool { return s.dst == way.to && s.proto == proto })
		}
		send := func() {
			segment := udpPacket(way.src, way.to, 1000, 4433, big)
			if way.src.Is4() {
				segment = packet4(way.src, way.to, udp, segment[20:], nil, 0x4000) // don't fragment
			}
			wb.send(ether(b.mac, wb.mac, segment))
		}
		nettest.Eventually(t, "a big packet", func() bool { send(); return there(udp) > 0 })
		next := atV.count(func(s seen) bool { return s == seen{way.liar, way.next, marker} })
		w.send(ether(a.mac, w.mac, lies(way.liar, way.own, way.to)))
		nettest.Eventually(t, "the liar's next packet", func() bool { // behind the lie on the same wire
			w.send(ether(a.mac, w.mac, packet(way.liar, way.next, marker, make([]byte, 8))))
			return atV.count(func(s seen) bool { return s == seen{way.liar, way.next, marker} }) > next
		})
		before, passed := there(udp), there(marker)
		send()
		nettest.Eventually(t, "what is sent behind it", func() bool {
			wb.send(ether(b.mac, wb.mac, packet(way.src, way.to, marker, make([]byte, 8))))
			return there(marker) > passed
		})
		if there(udp) == before {
			t.Errorf("what another pod sends to %s does not pass any more", way.to)
		}
	}
}

// A pod tells another pod that an answer of the other pod was too big: an answer to somebody
// far away, or to the lying pod. The other pod's kernel would keep the MTU for ten minutes,
// whoever has the liar's address by then. The other pod does not hear these errors. It hears
// errors about a connection of the two.
func TestPodsAreNotToldPathMTUsOfNothing(t *testing.T) {
	n := newNode(t, plain)
	a, v := n.add("a"), n.add("v")
	w, heard := a.wire(t), listen(t, v.at)
	for _, as := range []struct {
		own, victim, far netip.Addr
		proto            byte
	}{{a.ip4, v.ip4, far4, icmp4}, {a.ip6, v.ip6, lan6, icmp6}} {
		knows := func(to netip.Addr) bool {
			out, err := nettest.Command(v.at, nettest.Program(t, "ip"), "route", "get", to.String()).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return strings.Contains(string(out), " mtu ")
		}
		for _, to := range []netip.Addr{as.far, as.own} {
			w.send(ether(a.mac, w.mac, lies(as.own, as.victim, to)))
		}
		nettest.Eventually(t, "the liar's next packet", func() bool {
			w.send(ether(a.mac, w.mac, packet(as.own, as.victim, marker, make([]byte, 8))))
			return heard.count(func(s seen) bool { return s == seen{as.own, as.victim, marker} }) > 0
		})
		if heard.count(func(s seen) bool { return s == seen{as.own, as.victim, as.proto} }) > 0 {
			t.Errorf("%s hears of packets that were never sent", as.victim)
		}
		for _, to := range []netip.Addr{as.far, as.own} {
			if knows(to) {
				t.Errorf("%s believes a pod's word about its path to %s", as.victim, to)
			}
		}

		var conn net.Conn
		must(t, v.at.Do(func() (err error) {
			conn, err = net.Dial("udp", netip.AddrPortFrom(as.own, 4433).String())
			return err
		}))
		defer conn.Close()
		port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		nettest.Eventually(t, "a word about a connection", func() bool {
			_, _ = conn.Write([]byte("hello")) // begins the connection, or hears that nobody listens
			w.send(ether(a.mac, w.mac, tooBig(as.own, as.victim, 1280, udpPacket(as.victim, as.own, port, 4433, "hello"))))
			return knows(as.own)
		})
	}
}

// A machine outside tells the node that what the node has answered to a pod, or to somebody far
// away, was too big, and tells a pod the same of an answer to somebody. Nobody ever sent these
// answers. Nobody believes the errors, and a pod's packets to the other pod, which must not be
// cut into pieces, pass. The node believes errors about its own connections.
func TestNobodyIsToldPathMTUsOfNothingFromElsewhere(t *testing.T) {
	n := newNode(t, plain)
	b, v := n.add("b"), n.add("v")
	wb, send, atV := b.wire(t), n.uplinkWire(t), listen(t, v.at)
	for _, as := range []struct {
		liar, node, far netip.Addr
		proto           byte
		network         string
	}{
		{lan4, node4, far4, icmp4, "udp4"},
		{lan6, node6, netip.MustParseAddr("2001:db8:ffff::1"), icmp6, "udp6"},
	} {
		own, other := v.own(as.liar), b.own(as.liar)
		believes := func(who *ns.Netns, to netip.Addr) bool {
			t.Helper()
			look := exec.Command(nettest.Program(t, "ip"), "route", "get", to.String())
			if who != nil {
				look = nettest.Command(who, look.Args[0], look.Args[1:]...)
			}
			out, err := look.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return strings.Contains(string(out), " mtu ")
		}
		for _, to := range []netip.Addr{own, as.far} {
			send(lies(as.liar, as.node, to))
		}
		for _, to := range []netip.Addr{other, as.far} {
			send(lies(as.liar, own, to))
		}
		nettest.Eventually(t, "what comes behind it", func() bool {
			send(packet(as.liar, own, marker, make([]byte, 8)))
			return atV.count(func(s seen) bool { return s == seen{as.liar, own, marker} }) > 0
		})
		for _, to := range []netip.Addr{own, as.far} {
			if believes(nil, to) {
				t.Errorf("the node believes a word about its path to %s", to)
			}
		}
		for _, to := range []netip.Addr{other, as.far} {
			if believes(v.at, to) {
				t.Errorf("a pod believes a word about its path to %s", to)
			}
		}
		if atV.count(func(s seen) bool { return s == seen{as.liar, own, as.proto} }) > 0 {
			t.Errorf("%s hears of packets that were never sent", own)
		}

		segment := udpPacket(other, own, 1000, 4433, strings.Repeat("x", 1400))
		if as.liar.Is4() {
			segment = packet4(other, own, udp, segment[20:], nil, 0x4000) // don't fragment
		}
		there := func(proto byte) int {
			return atV.count(func(s seen) bool { return s == seen{other, own, proto} })
		}
		nettest.Eventually(t, "what is sent behind a big packet", func() bool {
			wb.send(ether(b.mac, wb.mac, segment))
			wb.send(ether(b.mac, wb.mac, packet(other, own, marker, make([]byte, 8))))
			return there(marker) > 0
		})
		if there(udp) == 0 {
			t.Errorf("what another pod sends to %s does not pass", own)
		}

		nettest.Serve(t, n.lan, as.network, netip.AddrPortFrom(as.liar, 4433).String())
		conn, err := net.Dial(as.network, netip.AddrPortFrom(as.liar, 4433).String())
		must(t, err)
		defer conn.Close()
		port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		nettest.Eventually(t, "a word about the node's own connection", func() bool {
			_, err := conn.Write([]byte("hello"))
			must(t, err)
			send(tooBig(as.liar, as.node, 1280, udpPacket(as.node, as.liar, port, 4433, "hello")))
			return believes(nil, as.liar)
		})
	}
}

// A pod tells a server outside, about its own masqueraded flow, that the path is narrow. The
// server would believe that about the node's address, and so about all pods. The server hears of
// no MTU below 1280. It hears of 1280, because pods may forward.
func TestOutsideIsToldNoSmallPathMTU(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	w := a.wire(t)
	for _, as := range []struct {
		own, server, node netip.Addr
		network           string
	}{{a.ip4, lan4, node4, "udp4"}, {a.ip6, lan6, node6, "udp6"}} {
		nettest.Serve(t, n.lan, as.network, netip.AddrPortFrom(as.server, 4433).String())
		known := func() string {
			out, err := nettest.Command(n.lan, nettest.Program(t, "ip"), "route", "get", as.node.String()).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			_, after, _ := strings.Cut(string(out), " mtu ")
			return after
		}
		tell := func(mtu uint16) {
			w.send(ether(a.mac, w.mac, udpPacket(as.own, as.server, 5000, 4433, "hello")))
			w.send(ether(a.mac, w.mac, tooBig(as.own, as.server, mtu, udpPacket(as.server, as.own, 4433, 5000, strings.Repeat("x", 500)))))
		}
		nettest.Eventually(t, "a word about the path", func() bool {
			for _, mtu := range []uint16{0, 100, 552, 1279} {
				tell(mtu)
			}
			tell(1280) // the server believes the least
			return known() != ""
		})
		if got := known(); !strings.HasPrefix(got, "1280 ") {
			t.Errorf("the server's path to %s has an MTU of %s", as.node, got)
		}
	}
}

// A pod that speaks MPTCP with a program of the node, whoever opens the connection, dies
// while the program has something to say. The program is told that the connection is over.
func TestProgramIsToldOfDeadMultipath(t *testing.T) {
	n := newNode(t, plain)
	for _, who := range []string{"pod", "node"} {
		t.Run(who+" opens", func(t *testing.T) {
			dead := n.add("of-" + who)
			var l net.Listener
			listens := func(at string) (err error) {
				var config net.ListenConfig
				config.SetMultipathTCP(true)
				l, err = config.Listen(t.Context(), "tcp", net.JoinHostPort(at, "0"))
				return err
			}
			dials := func() (c net.Conn, err error) {
				var d net.Dialer
				d.SetMultipathTCP(true)
				return d.DialContext(context.Background(), "tcp", l.Addr().String())
			}
			var says net.Conn // of the node's program
			var err error
			if who == "pod" {
				must(t, listens(node4.String()))
				must(t, dead.at.Do(func() error { _, err := dials(); return err }))
				says, err = l.Accept()
			} else {
				must(t, dead.at.Do(func() error { return listens(dead.ip4.String()) }))
				if says, err = dials(); err == nil {
					_, err = l.Accept()
				}
			}
			must(t, err)
			defer says.Close()
			defer l.Close()
			n.del(dead, wait)
			if _, err := says.Write([]byte("for the dead pod")); err == nil {
				t.Error("the node's program is not told that its connection is over")
			}
		})
	}
	n.wantGone()
}
