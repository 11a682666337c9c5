package hostile

import (
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// firewall is what many a node loads at its start: others' tables are in its way, and
// it asks for connections' states, so that connections are tracked.
const firewall = `flush ruleset
table inet firewall {
	chain forward {
		type filter hook forward priority 0; policy accept
		ct state established,related accept
	}
}
`

// Somebody loads a firewall that flushes all tables, and pods send before the agent
// has restored its own: it hangs, or does not run. The kernel tracks their connections
// with their own addresses. Once the table is back nothing leaves with those, the
// connections that began meanwhile included: they go on behind the node's address.
func TestFlushedMasqueradeExposesNobodyForLong(t *testing.T) {
	for name, away := range map[string]func(n *node) (back func()){
		"hangs": func(n *node) func() {
			signal := func(s syscall.Signal) {
				if err := n.Signal(s); err != nil {
					n.t.Fatal(err)
				}
			}
			signal(syscall.SIGSTOP)
			return func() { signal(syscall.SIGCONT) }
		},
		"does not run": func(n *node) func() {
			n.kill()
			return n.start
		},
	} {
		t.Run(name, func(t *testing.T) {
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

			back := away(n)
			heard := listen(t, n.lan)
			nft(t, firewall)
			nettest.Eventually(t, "the pod's own address outside", func() bool { send(); return heard.count(exposed) >= 40 })
			back()
			nettest.Eventually(t, "all to leave with the node's address", func() bool {
				heard := listen(t, n.lan)
				send()
				nettest.Eventually(t, "what was sent", func() bool { return heard.count(exposed)+heard.count(hidden) >= 40 })
				return heard.count(exposed) == 0
			})
			n.wantGone()
		})
	}
}

// A pod asks for a cloud's credentials without end, until a moment comes in which
// somebody has flushed all tables. Its connection does not outlive that moment.
func TestMetadataIsOutOfReachAfterFlush(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	metadata := netip.MustParseAddr("169.254.169.254")
	nettest.Run(t, n.lan, "ip addr add 169.254.169.254/32 dev lo")
	echo := nettest.Serve(t, n.lan, "udp4", netip.AddrPortFrom(metadata, 80).String())
	var asks net.Conn
	if err := a.at.Do(func() (err error) { asks, err = net.Dial("udp4", echo.String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	answered := func() bool {
		_, sent := asks.Write([]byte("who am I"))
		_ = asks.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := asks.Read(make([]byte, 64))
		return sent == nil && err == nil
	}
	if err := n.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nft(t, firewall)
	nettest.Eventually(t, "an answer, with no table", answered)
	if err := n.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	nettest.Eventually(t, "no more answers", func() bool { return !answered() })
	for range 5 {
		if answered() {
			t.Fatal("answered again")
		}
	}
	n.wantGone()
}
