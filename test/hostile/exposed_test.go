package hostile

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/vishvananda/netlink"
)

// firewall is what many a node loads at its start. The script flushes all other tables, and
// asks for connections' states, so that the kernel tracks connections.
const firewall = `flush ruleset
table inet firewall {
	chain forward {
		type filter hook forward priority 0; policy accept
		ct state established,related accept
	}
}
`

// Somebody loads a firewall that flushes all tables, and pods send before the agent has
// restored its own table: the agent hangs, or does not run. The kernel tracks the pods' connections
// with the pods' own addresses. Once the table is back, no packet leaves with a pod's own address.
// The connections that began meanwhile go on behind the node's address.
func TestFlushedMasqueradeExposesNobodyForLong(t *testing.T) {
	for name, away := range map[string]func(*node) (back func()){
		"hangs": (*node).hang,
		"does not run": func(n *node) func() {
			n.Crash()
			return n.Again
		},
	} {
		t.Run(name, func(t *testing.T) {
			exposesNobodyForLong(t, func(n *node) func() {
				back := away(n)
				nft(t, firewall)
				return back
			})
		})
	}
}

// Somebody lays the agent's table to sleep and wakes it up, or saves all tables, flushes them,
// and loads what was saved, while the agent hangs and pods send. The table is as it was when
// the agent looks. Connections that began meanwhile do not go on with the pods' addresses.
func TestTableAwayAndBackExposesNobodyForLong(t *testing.T) {
	for name, away := range map[string]func(t *testing.T) (back func()){
		"asleep and awake": func(t *testing.T) func() {
			tables, err := exec.Command(nettest.Program(t, "nft"), "list", "tables").Output()
			must(t, err)
			table := "inet " + regexp.MustCompile(`berth-\w+`).FindString(string(tables))
			nettest.Run(t, nil, "nft add table "+table+" { flags dormant; }")
			return func() { nettest.Run(t, nil, "nft add table "+table) }
		},
		"flushed and loaded": func(t *testing.T) func() {
			saved, err := exec.Command(nettest.Program(t, "nft"), "list", "ruleset").Output()
			must(t, err)
			nft(t, firewall)
			return func() { nft(t, "flush ruleset\n"+string(saved)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			exposesNobodyForLong(t, func(n *node) func() {
				nft(t, strings.TrimPrefix(firewall, "flush ruleset\n")) // connections are tracked
				goOn := n.hang()
				back := away(t)
				return func() {
					back()
					goOn()
				}
			})
		})
	}
}

// exposesNobodyForLong has a pod send while the rules are away, until the machine outside sees the
// pod's own addresses, and wants these addresses to be hidden once the rules are back.
func exposesNobodyForLong(t *testing.T, away func(*node) (back func())) {
	n := newNode(t, plain)
	a := n.add("a")
	w := a.wire(t)
	send := func() {
		for from := range uint16(20) {
			w.send(ether(a.mac, w.mac, udpPacket(a.ip4, lan4, 2000+from, 53, "hello")))
			w.send(ether(a.mac, w.mac, udpPacket(a.ip6, lan6, 2000+from, 53, "hello")))
		}
	}
	exposed := func(s seen) bool { return s.src == a.ip4 || s.src == a.ip6 }
	hidden := func(s seen) bool { return s.src == node4 && s.dst == lan4 || s.src == node6 && s.dst == lan6 }

	heard := listen(t, n.lan)
	back := away(n)
	nettest.Eventually(t, "the pod's own address outside", func() bool { send(); return heard.count(exposed) >= 40 })
	back()
	nettest.Eventually(t, "all to leave with the node's address", func() bool {
		heard := listen(t, n.lan)
		send()
		nettest.Eventually(t, "what was sent", func() bool { return heard.count(exposed)+heard.count(hidden) >= 40 })
		return heard.count(exposed) == 0
	})
	n.wantGone()
}

// A pod asks for a cloud's credentials without end, until a moment comes in which somebody has
// flushed all tables, or taken the pod's link out of the group that the table's rules are for, in one
// case with a new name in the same message. The pod's connection does not outlive that moment. If
// somebody has made the link a bridge's port, the pod always asks in vain: its packets do not come by
// the link to which its address is routed.
func TestMetadataIsOutOfReachAgain(t *testing.T) {
	for name, open := range map[string]func(n *node, a *pod){
		"flushed":     func(*node, *pod) { nft(t, firewall) },
		"in no group": func(_ *node, a *pod) { nettest.Run(t, nil, "ip link set "+a.host+" group default") },
		"in no group, by another name": func(_ *node, a *pod) {
			nettest.Run(t, nil, "ip link set dev "+a.host+" group default name other")
		},
		"port of bridge": func(_ *node, a *pod) {
			nettest.Run(t, nil, "ip link add br0 address "+a.mac.String()+" type bridge")
			nettest.Run(t, nil, "ip link set br0 up")
			nettest.Run(t, nil, "ip link set "+a.host+" master br0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, plain)
			a := n.add("a")
			t.Cleanup(func() { _ = exec.Command(nettest.Program(t, "ip"), "link", "del", "br0").Run() })
			asks := a.asksMetadata(n)
			defer asks.Close()
			goOn := n.hang()
			open(n, a)
			if name == "port of bridge" {
				noMoreAnswers(t, asks)
			} else {
				nettest.Eventually(t, "an answer, while no rule is there", func() bool { return answered(asks) })
			}
			goOn()
			noMoreAnswers(t, asks)
			n.wantGone()
		})
	}
}

// Somebody takes the pod's link out of the rules' group while no agent runs, and the pod asks for a
// cloud's credentials. The agent that starts has much else to mend, so that the pod's next packet
// begins the connection anew before the link is back in the group. The connection does not outlive
// the agent's start either.
func TestMetadataIsOutOfReachAfterStart(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	var others []*pod
	for i := range 40 {
		others = append(others, n.add(fmt.Sprint("other", i)))
	}
	asks := a.asksMetadata(n)
	defer asks.Close()
	n.Crash()
	for _, o := range others {
		nettest.Run(t, o.at, "ip link del eth0")
	}
	nettest.Run(t, nil, "ip link set "+a.host+" group default")
	nettest.Eventually(t, "an answer, while no rule is there", func() bool { return answered(asks) })
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // the pod asks without end
		defer close(ended)
		pause := time.NewTicker(50 * time.Microsecond)
		defer pause.Stop()
		for ctx.Err() == nil {
			_, _ = asks.Write([]byte("who am I"))
			<-pause.C
		}
	}()
	defer func() { cancel(); <-ended }()
	n.Again()
	noMoreAnswers(t, asks)
	cancel()
	n.wantGone()
}

// An agent that is killed and started finds its table as it left it. A connection that a pod has
// begun still counts for that pod, also while the other end sends and the pod is silent. If the
// kernel forgot the connection, it would count for the other end, which could then begin no
// connection of its own.
func TestRestartTurnsNoFlows(t *testing.T) {
	const flows = 50
	n := newNode(t, plain)
	silent, server := n.add("silent"), n.add("server")
	silent.mute(t)
	var conn *net.UDPConn
	must(t, server.at.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: server.ip4.AsSlice(), Port: floodPort})
		return err
	}))
	defer conn.Close()
	w := silent.wire(t)
	begun := func(by, with netip.Addr) (n int) {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		must(t, err)
		for _, f := range all {
			src, _ := netip.AddrFromSlice(f.Forward.SrcIP)
			dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
			if src.Unmap() == by && dst.Unmap() == with {
				n++
			}
		}
		return n
	}
	tell := func() {
		for from := range flows {
			_, _ = conn.WriteToUDP([]byte("news"), &net.UDPAddr{IP: silent.ip4.AsSlice(), Port: 2000 + from})
		}
	}
	nettest.Eventually(t, "the flows", func() bool {
		for from := range uint16(flows) {
			w.send(ether(silent.mac, w.mac, udpPacket(silent.ip4, server.ip4, 2000+from, floodPort, "subscribe")))
		}
		return begun(silent.ip4, server.ip4) == flows
	})
	n.Crash()
	nettest.Run(t, nil, fmt.Sprintf("conntrack --create --orig-src %s --orig-dst %s --protonum udp --sport 9 --dport 9 --timeout 600", silent.ip4, lan4))
	n.Again()
	nettest.Eventually(t, "what the rules would not have let begin to be gone", func() bool { tell(); return begun(silent.ip4, lan4) == 0 })
	tell()
	if own, turned := begun(silent.ip4, server.ip4), begun(server.ip4, silent.ip4); own != flows || turned != 0 {
		t.Errorf("%d flows of %d count for the pod that began them, and %d for the other end", own, flows, turned)
	}
	n.wantGone()
}

// asksMetadata is a pod's connection to the metadata service, which is beyond the node.
func (p *pod) asksMetadata(n *node) (asks net.Conn) {
	n.t.Helper()
	nettest.Run(n.t, n.lan, "ip addr add 169.254.169.254/32 dev lo")
	echo := nettest.Serve(n.t, n.lan, "udp4", "169.254.169.254:80")
	must(n.t, p.at.Do(func() (err error) { asks, err = net.Dial("udp4", echo.String()); return err }))
	return asks
}

// noMoreAnswers waits until questions are not answered any more.
func noMoreAnswers(t *testing.T, asks net.Conn) {
	t.Helper()
	nettest.Eventually(t, "no more answers", func() bool { return !answered(asks) })
	for range 5 {
		if answered(asks) {
			t.Fatal("answered again")
		}
	}
}

// answered reports whether a question is answered.
func answered(c net.Conn) bool {
	_, sent := c.Write([]byte("who am I"))
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := c.Read(make([]byte, 64))
	return sent == nil && err == nil
}

// Somebody loads a firewall that flushes all tables, while the agent hangs, and a pod makes the
// most of that time: the pod sends, and forges the answers, so that its connections look as if
// somebody answered them. The pod also forges connections from the metadata service to itself, to
// answer them later. Once the table is back, no packet of these connections leaves with the pod's
// address, and none goes to the metadata service.
func TestForgedAnswersDoNotOutliveFlush(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	w := a.wire(t)
	metadata := netip.MustParseAddr("169.254.169.254")
	send := func(answers bool) {
		say := func(src, dst netip.Addr, from, to uint16, own bool) {
			if own || answers {
				w.send(ether(a.mac, w.mac, udpPacket(src, dst, from, to, "hello")))
			}
		}
		say(metadata, a.ip4, 80, 1001, false)
		say(a.ip4, metadata, 1001, 80, true)
		say(a.ip4, lan4, 1002, 5000, true)
		say(lan4, a.ip4, 5000, 1002, false)
		say(a.ip6, lan6, 1002, 5000, true)
		say(lan6, a.ip6, 5000, 1002, false)
	}
	exposed := func(s seen) bool { return s.proto == udp && (s.src == a.ip4 || s.src == a.ip6) }
	asked := func(s seen) bool { return s.proto == udp && s.dst == metadata }
	hidden := func(src, dst netip.Addr) func(seen) bool {
		return func(s seen) bool { return s == seen{src, dst, udp} }
	}

	goOn := n.hang()
	nft(t, firewall)
	heard := listen(t, n.lan)
	nettest.Eventually(t, "what no rule keeps in", func() bool {
		send(true)
		return heard.count(asked) > 0 && heard.count(exposed) > 10
	})
	goOn()
	nettest.Eventually(t, "all to leave with the node's address, and nothing for the metadata service", func() bool {
		heard := listen(t, n.lan)
		nettest.Eventually(t, "what is sent", func() bool {
			send(false)
			return heard.count(exposed) > 0 || heard.count(hidden(node4, lan4)) > 0 && heard.count(hidden(node6, lan6)) > 0
		})
		return heard.count(exposed) == 0 && heard.count(asked) == 0
	})
	n.wantGone()
}
