package hostile

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// uplinkWire returns send, which sends a packet from the machine beyond the node to the node's end of
// their link.
func (n *node) uplinkWire(t *testing.T) (send func(packet []byte)) {
	t.Helper()
	w := openWire(t, n.lan, false)
	t.Cleanup(func() { unix.Close(w.fd) })
	up, err := net.InterfaceByName("up0")
	must(t, err)
	return func(packet []byte) { w.send(ether(up.HardwareAddr, w.mac, packet)) }
}

// begun counts the connections that are tracked in an address's name.
func begun(t *testing.T, by netip.Addr) (n int) {
	t.Helper()
	flows := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, family(by))
	})
	for _, f := range flows {
		if f.Forward.SrcIP.Equal(by.AsSlice()) {
			n++
		}
	}
	return n
}

// family returns an address's family.
func family(of netip.Addr) netlink.InetFamily {
	if of.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// A machine of the LAN sends in a pod's name to another pod, which answers, on a node that
// checks no paths (rp_filter): in the name of a living pod, and of an address that nobody has
// yet. No packet arrives, and the node tracks no connection in these names.
func TestNobodySendsInAPodsNameFromElsewhere(t *testing.T) {
	n := newNode(t, plain)
	for _, link := range []string{"all", "up0"} {
		sysctl(t, "ipv4/conf/"+link+"/rp_filter", "0")
	}
	b, v := n.add("b"), n.add("v")
	free4, free6 := netip.MustParseAddr("10.88.7.7"), netip.MustParseAddr("fd00:88::7777")
	send, wb, heard := n.uplinkWire(t), b.wire(t), listen(t, b.at)
	for _, way := range []struct{ name, to, own netip.Addr }{
		{v.ip4, b.ip4, lan4}, {free4, b.ip4, lan4}, {v.ip6, b.ip6, lan6}, {free6, b.ip6, lan6},
		{v.ip4, node4, lan4}, {v.ip6, node6, lan6},
	} {
		for port := uint16(1); port <= 20; port++ {
			send(udpPacket(way.name, way.to, 1000+port, port, "lie"))
			send(tcpPacket(way.name, way.to, 1000+port, port, syn, 1, 0))
		}
		truths := func() int { return heard.count(func(s seen) bool { return s.src == way.own && s.proto == udp }) }
		before := truths()
		nettest.Eventually(t, "what comes in the machine's own name", func() bool { // behind the lies
			send(udpPacket(way.own, b.own(way.own), 1000, 1000, "true"))
			return truths() > before
		})
		for port := uint16(1); port <= 20; port++ { // each answer would keep an entry alive
			if way.to == b.own(way.own) {
				wb.send(ether(b.mac, wb.mac, udpPacket(way.to, way.name, port, 1000+port, "answer")))
			}
		}
		lie := func(s seen) bool { return s.src == way.name && s.dst == way.to && (s.proto == udp || s.proto == tcp) }
		if lies := heard.count(lie); lies > 0 {
			t.Errorf("%d packets from elsewhere in the name of %s arrive at %s", lies, way.name, way.to)
		}
		if k := begun(t, way.name); k > 0 {
			t.Errorf("%d connections from elsewhere to %s are tracked in the name of %s", k, way.to, way.name)
		}
	}
}

// A machine of the LAN has a connection with a pod, and sends errors about that connection in another
// pod's name, which connection tracking takes for a part of the connection. The first pod does not hear these
// errors. It hears the same errors if the machine sends them in the machine's own name.
func TestErrorsInAPodsNameFromElsewhere(t *testing.T) {
	n := newNode(t, plain)
	for _, link := range []string{"all", "up0"} {
		sysctl(t, "ipv4/conf/"+link+"/rp_filter", "0")
	}
	v, b := n.add("v"), n.add("b")
	send, heard := n.uplinkWire(t), listen(t, b.at)
	for _, way := range []struct {
		name, to, server, node netip.Addr
		network                string
		proto                  byte
	}{{v.ip4, b.ip4, lan4, node4, "udp4", icmp4}, {v.ip6, b.ip6, lan6, node6, "udp6", icmp6}} {
		server := nettest.Serve(t, n.lan, way.network, netip.AddrPortFrom(way.server, 4433).String())
		from, err := nettest.Talk(b.at, way.network, server, nettest.Deadline)
		must(t, err)
		as := func(src netip.Addr) int {
			return heard.count(func(s seen) bool { return s == seen{src, way.to, way.proto} })
		}
		nettest.Eventually(t, "an error in the machine's own name", func() bool {
			for _, src := range []netip.Addr{way.name, way.server} {
				send(tooBig(src, way.node, 1280, udpPacket(way.node, way.server, from.Port(), 4433, "some words and more")))
			}
			return as(way.server) > 0
		})
		if k := as(way.name); k > 0 {
			t.Errorf("%s hears %d errors from %s, which has sent none", way.to, k, way.name)
		}
	}
}

// own returns the pod's address of the same family as another address.
func (p *pod) own(as netip.Addr) netip.Addr {
	if as.Is6() {
		return p.ip6
	}
	return p.ip4
}

// A machine of the LAN sends a pod what looks as if the metadata service had begun to speak
// to it, for the pod to answer: by UDP, and by TCP as if pod and service had begun at once.
// Nothing of the pod's goes to the metadata service.
func TestMetadataDoesNotBegin(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	w, send, heard, atA := a.wire(t), n.uplinkWire(t), listen(t, n.lan), listen(t, a.at)
	for _, link := range []string{"all", "up0"} {
		sysctl(t, "ipv4/conf/"+link+"/rp_filter", "1") // which is no help: the default route is there
	}
	for _, way := range []struct{ own, metadata, lan, node netip.Addr }{
		{a.ip4, netip.MustParseAddr("169.254.169.254"), lan4, node4},
		{a.ip6, netip.MustParseAddr("fd00:ec2::254"), lan6, node6},
	} {
		nettest.Run(t, n.lan, "ip addr add "+netip.PrefixFrom(way.metadata, way.metadata.BitLen()).String()+" dev lo")
		for range 3 {
			send(udpPacket(way.metadata, way.own, 80, 4000, "hello"))
			send(tcpPacket(way.metadata, way.own, 80, 4001, syn, 1, 0))
		}
		nettest.Eventually(t, "what comes behind it", func() bool {
			send(udpPacket(way.lan, way.own, 1000, 1000, "true"))
			return atA.count(func(s seen) bool { return s.src == way.lan }) > 0
		})
		for range 3 {
			w.send(ether(a.mac, w.mac, udpPacket(way.own, way.metadata, 4000, 80, "who am I")))
			w.send(ether(a.mac, w.mac, tcpPacket(way.own, way.metadata, 4001, 80, syn, 100, 0)))
		}
		nettest.Eventually(t, "the pod's next packet", func() bool {
			w.send(ether(a.mac, w.mac, udpPacket(way.own, way.lan, 4002, 53, "hello")))
			return heard.count(func(s seen) bool { return s.src == way.node && s.dst == way.lan && s.proto == udp }) > 0
		})
		for _, s := range heard.all(func(s seen) bool { return s.dst == way.metadata }) {
			t.Errorf("goes to the metadata service: %s", s)
		}
	}
}

// Somebody flushes all tables while no agent runs, and a pod sends in another pod's name to a third
// pod, which answers and goes on answering. When the agent is back, the node tracks none of
// these connections in the other pod's name.
func TestLiesAreNotKeptInTheVictimsName(t *testing.T) {
	n := newNode(t, plain)
	a, b, v := n.add("a"), n.add("b"), n.add("v")
	w, wb := a.wire(t), b.wire(t)
	for _, p := range []*pod{b, v} { // only the test answers what is forged
		nettest.Run(t, p.at, "nft add table inet mute")
		nettest.Run(t, p.at, "nft add chain inet mute in { type filter hook input priority 0 ; policy accept ; }")
		nettest.Run(t, p.at, "nft add rule inet mute in udp dport 1-65535 drop")
	}
	n.Crash()
	nft(t, firewall)
	talk := func(lies bool) {
		for port := uint16(1); port <= 50; port++ {
			for _, as := range []struct{ victim, friend netip.Addr }{{v.ip4, b.ip4}, {v.ip6, b.ip6}} {
				if lies {
					w.send(ether(a.mac, w.mac, udpPacket(as.victim, as.friend, 1000+port, port, "lie")))
				}
				wb.send(ether(b.mac, wb.mac, udpPacket(as.friend, as.victim, port, 1000+port, "answer")))
			}
		}
	}
	nettest.Eventually(t, "lies in the other's name", func() bool {
		talk(true)
		return begun(t, v.ip4) >= 50 && begun(t, v.ip6) >= 50
	})
	n.Again()
	nettest.Eventually(t, "them to be forgotten", func() bool {
		talk(true) // without end
		return begun(t, v.ip4) == 0 && begun(t, v.ip6) == 0
	})
	talk(false)
	if k := begun(t, b.ip4); k < 50 {
		t.Errorf("%d connections are tracked in the name of who answers, not 50", k)
	}
	n.wantGone()
}

// A machine of the LAN advertises a pod's address as one on its link, on a node that takes advertisements. The node
// takes the route, and goes on to send to the pod by the pod's own link.
func TestNoAdvertisementTakesAPodsAddress(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	nettest.Sysctl(t, n.lan, "ipv6/conf/eth0/accept_ra", "0") // it hears itself
	sysctl(t, "ipv6/conf/up0/accept_ra", "2")
	nettest.Run(t, n.lan, "ip -6 addr add fe80::900d/64 dev eth0 nodad")
	ip := func(args ...string) string {
		out, err := exec.Command("ip", append([]string{"-6", "route"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	nettest.Eventually(t, "the node to take the route", func() bool {
		nettest.Advertise(t, n.lan, "eth0", netip.MustParseAddr("fe80::900d"), netip.PrefixFrom(a.ip6, 128))
		return strings.Contains(ip("show", a.ip6.String()), "dev up0 proto kernel")
	})
	if way := ip("get", a.ip6.String()); !strings.Contains(way, " dev "+a.host+" ") {
		t.Errorf("packets to the pod go another way: %s", way)
	}
	nettest.Ping(t, n.lan, a.ip6)
	nettest.Run(t, nil, "ip -6 route del "+a.ip6.String()+" dev up0")
}
