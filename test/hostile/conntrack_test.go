package hostile

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// kernelInt reads a number from below /proc/sys.
func kernelInt(t *testing.T, name string) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/sys/" + name)
	must(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	must(t, err)
	return n
}

// tracked is how many connections the node keeps track of: conntrack -C.
func tracked(t *testing.T) int { return kernelInt(t, "net/netfilter/nf_conntrack_count") }

// share is how many connections a pod may have by default.
const share = 32768

// A pod opens as many connections as the node can keep track of: with itself on both ends,
// established, so that they stay for days (t8d.sh); to the node; from nobody's address to
// everybody (t8.sh); closed ones, which the kernel keeps for two minutes. The pod gets no more
// than its share (connections in berthd.yaml, 32768 by default) and a tenth, and another pod
// and the node can open connections. When the pod goes, its entries go.
func TestConnectionsOfOnePodAreLimited(t *testing.T) {
	most := kernelInt(t, "net/netfilter/nf_conntrack_max")
	for _, c := range []struct {
		name string
		most int // entries that the pod may have
		open func(a *pod, w *wire, i int)
	}{
		{"established with itself", share * 5 / 4, func(a *pod, w *wire, i int) {
			from, to := uint16(1+i%30000), uint16(40000+i/30000)
			w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, a.ip4, from, to, syn, 1, 0)))
			w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, a.ip4, to, from, syn|ack, 1, 2)))
			w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, a.ip4, from, to, ack, 2, 2)))
		}},
		{"closed again with itself", share * 6, func(a *pod, w *wire, i int) {
			from, to := uint16(1+i%30000), uint16(40000+i/30000)
			say := func(from, to uint16, flags byte, seq, acked uint32) {
				w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, a.ip4, from, to, flags, seq, acked)))
			}
			say(from, to, syn, 1, 0)
			say(to, from, syn|ack, 1, 2)
			say(from, to, ack, 2, 2) // otherwise the kernel gives the connection up for others
			say(from, to, fin|ack, 2, 2)
			say(to, from, fin|ack, 2, 3)
			say(from, to, ack, 3, 3)
		}},
		{"to the node", share * 5 / 4, func(a *pod, w *wire, i int) {
			w.send(ether(a.mac, w.mac, udpPacket(a.ip4, node4, uint16(1+i%65000), uint16(1+i/65000), "")))
		}},
		{"IPv6, to the node", share * 5 / 4, func(a *pod, w *wire, i int) {
			w.send(ether(a.mac, w.mac, udpPacket(a.ip6, node6, uint16(1+i%65000), uint16(1+i/65000), "")))
		}},
		{"from nobody to everybody", 1000, func(a *pod, w *wire, i int) {
			nobody, all := netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255")
			w.send(ether(broadcast, w.mac, udpPacket(nobody, all, uint16(1+i%65000), uint16(1+i/65000), "")))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, plain)
			a, b := n.add("a"), n.add("b")
			w := a.wire(t)
			a.mute(t)

			for i := range most + 1000 {
				c.open(a, w, i)
			}
			last := -1 // packets on their way come through
			nettest.Eventually(t, "the table to rest", func() bool {
				now := tracked(t)
				rests := now == last
				last = now
				return rests
			})
			if n := tracked(t); n > c.most {
				t.Errorf("the node tracks %d connections of one pod, of %d that it can; want at most %d", n, most, c.most)
			}
			echo := nettest.Serve(t, n.lan, "udp4", "192.0.2.2:0")
			for who, from := range map[string]*ns.Netns{"another pod": b.at, "a new pod": n.add("c").at, "the node": nil} {
				for range 5 { // a full table sometimes has room for one more
					if _, err := nettest.Talk(from, "udp4", echo, 2*time.Second); err != nil {
						t.Errorf("%s gets no connection: %v", who, err)
						break
					}
				}
			}
			n.del(a, wait)
			nettest.Eventually(t, "the pod's entries to be gone", func() bool { return tracked(t) < 1000 })
			n.wantGone()
		})
	}
}

// A pod opens connections with itself, closes them, and sends one more packet for each from
// time to time, so that the kernel never forgets them (hostile3, twa.c). The pod goes on doing
// so while the node deletes its entries. The table is never full: another pod and the node can
// open connections all the while.
func TestClosedConnectionsOfOnePodAreTrimmed(t *testing.T) {
	most := kernelInt(t, "net/netfilter/nf_conntrack_max")
	// With so many connections to begin with, a pod fills the table in seconds, and not in
	// minutes.
	n := newNode(t, fmt.Sprintf("connections: %d\n", most*5/8)+plain)
	a, b := n.add("a"), n.add("b")
	w := a.wire(t)
	a.mute(t)
	echo := nettest.Serve(t, n.lan, "udp4", "192.0.2.2:0")
	say := func(i int, back bool, flags byte, seq, acked uint32) {
		from, to := uint16(1+i%30000), uint16(40000+i/30000)
		if back {
			from, to = to, from
		}
		w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, a.ip4, from, to, flags, seq, acked)))
	}
	opened, renewed := 0, 0
	more := func() {
		for range 5000 {
			i := opened
			opened++
			say(i, false, syn, 1, 0)
			say(i, true, syn|ack, 1, 2)
			say(i, false, ack, 2, 2)
			say(i, false, fin|ack, 2, 2)
			say(i, true, fin|ack, 2, 3)
			say(i, false, ack, 3, 3)
			say(renewed%opened, false, ack, 3, 3)
			renewed++
		}
	}
	fullest, end := 0, time.Time{}
	for {
		more()
		now := tracked(t)
		fullest = max(fullest, now)
		for who, from := range map[string]*ns.Netns{"another pod": b.at, "the node": nil} {
			if _, err := nettest.Talk(from, "udp4", echo, 2*time.Second); err != nil {
				t.Fatalf("%s gets no connection, with %d entries of %d: %v", who, now, most, err)
			}
		}
		if fullest > most*3/4 && now < most*5/8 {
			break
		}
		if fullest <= most*3/4 { // on a busy machine the pod takes a minute for that alone
			end = time.Now().Add(time.Minute)
		}
		if time.Now().After(end) {
			t.Fatalf("of %d entries there are %d, and have been %d", most, now, fullest)
		}
	}
	n.del(a, wait)
	nettest.Eventually(t, "the pod's entries to be gone", func() bool { return tracked(t) < 1000 })
	n.wantGone()
}

// A machine of the LAN opens TCP connections to a pod without end, and the pod answers, so that
// the kernel keeps them for days. No share counts these connections. When the table is three quarters
// full the agent deletes what is too much: another pod and the node can open connections, and DEL is
// short.
func TestConnectionsFromOutsideAreTrimmed(t *testing.T) {
	most := kernelInt(t, "net/netfilter/nf_conntrack_max")
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	w, send := a.wire(t), n.uplinkWire(t)
	nettest.Run(t, a.at, "nft add table inet mute")
	nettest.Run(t, a.at, "nft add chain inet mute in { type filter hook input priority 0 ; policy drop ; }")
	nettest.Run(t, n.lan, "nft add table inet mute")
	nettest.Run(t, n.lan, "nft add chain inet mute out { type filter hook output priority 0 ; }")
	nettest.Run(t, n.lan, "nft add rule inet mute out tcp flags rst drop")
	echo := nettest.Serve(t, n.lan, "udp4", "192.0.2.2:0")
	opened := 0
	open := func(many int) {
		for _, flags := range []byte{syn, syn | ack, ack} { // in turn, so that each comes behind the one before
			for i := opened; i < opened+many; i++ {
				from, to := uint16(1024+i%60000), uint16(1000+i/60000)
				switch flags {
				case syn:
					send(tcpPacket(lan4, a.ip4, from, to, syn, 1, 0))
				case syn | ack:
					w.send(ether(a.mac, w.mac, tcpPacket(a.ip4, lan4, to, from, syn|ack, 1, 2)))
				case ack:
					send(tcpPacket(lan4, a.ip4, from, to, ack, 2, 2))
				}
			}
		}
		opened += many
	}
	for fullest, end := 0, time.Now().Add(4*time.Minute); ; {
		now := tracked(t)
		if fullest = max(fullest, now); fullest >= most*3/4 && now < most/2 {
			break // the agent has seen the table
		}
		if time.Now().After(end) {
			t.Fatalf("of %d entries there are %d, and have been %d", most, now, fullest)
		}
		if now < most*13/16 { // as fast as a pod can, the table would be full before the agent looks
			open(128)
		}
	}
	for who, from := range map[string]*ns.Netns{"another pod": b.at, "the node": nil} {
		if _, err := nettest.Talk(from, "udp4", echo, 2*time.Second); err != nil {
			t.Errorf("%s gets no connection, with %d entries of %d: %v", who, tracked(t), most, err)
		}
	}
	n.del(a, wait)
	nettest.Eventually(t, "the pod's entries to be gone", func() bool { return tracked(t) < 1000 })
	n.wantGone()
}

// A pod opens its share of connections and deletes its end of the link, which deletes the node's end.
// The agent makes the link again. The pod opens another share of connections, and does all that again.
// The pod still has one share in all.
func TestShareOutlivesItsLink(t *testing.T) {
	n := newNode(t, "connections: 2048\n"+plain)
	a := n.add("a")
	a.mute(t)
	const most = 2048 * 5 / 4
	for round := range uint16(3) {
		w := a.wire(t)
		for from := range uint16(most) {
			w.send(ether(a.mac, w.mac, udpPacket(a.ip4, node4, 1+from, 1+round, "")))
		}
		nettest.Run(t, a.at, "ip link del eth0")
		nettest.Eventually(t, "the pod to be reached", func() bool {
			return isUp(t, a.host) && nettest.Command(a.at, nettest.Program(t, "ip"), "route", "get", node4.String()).Run() == nil
		})
	}
	if n := tracked(t); n > most {
		t.Errorf("the node tracks %d connections of one pod that deletes its link, want at most %d", n, most)
	}
	n.wantGone()
}

// A pod opens connections from all its ports to one address and port outside, a name
// server say. They all leave with the node's address, which has a port for each, and no
// more than 65536 for one destination. Another pod and the node still reach this address and port.
func TestPortsOfOnePodAreLimited(t *testing.T) {
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	w := a.wire(t)
	const port = 5353
	for range 2 { // some are chosen twice
		for from := 1; from < 1<<16; from++ {
			w.send(ether(a.mac, w.mac, udpPacket(a.ip4, lan4, uint16(from), port, "")))
		}
	}
	nettest.Eventually(t, "the pod's share to be used", func() bool { return tracked(t) > share*3/4 })
	echo := nettest.Serve(t, n.lan, "udp4", netip.AddrPortFrom(lan4, port).String())
	for who, from := range map[string]*ns.Netns{"another pod": b.at, "the node": nil} {
		for range 20 { // one in four finds a port that is free
			if _, err := nettest.Talk(from, "udp4", echo, 2*time.Second); err != nil {
				t.Errorf("%s does not reach what one pod has opened all its ports to: %v", who, err)
				break
			}
		}
	}
	forget(t)
	n.wantGone()
}

// A pod makes the node ask for neighbours that are not there, on a LAN so wide that
// the kernel's neighbour table is full of them. Pods are attached and reach each
// other: their entries are permanent, and do not count (t8.sh).
func TestNeighbourTableFilledByPod(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	nettest.Run(t, nil, "ip addr add 10.99.0.1/16 dev up0")
	w := a.wire(t)
	for i := range 2 * 1024 { // gc_thresh3, of which a node's own network namespace alone tells
		w.send(ether(a.mac, w.mac, udpPacket(a.ip4, netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), 9, 9, "")))
	}
	b, c := n.add("b"), n.add("c")
	nettest.Ping(t, b.at, c.ip4)
	nettest.Ping(t, c.at, b.ip6)
	n.wantGone()
}
