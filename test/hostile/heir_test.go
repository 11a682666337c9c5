package hostile

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// A pod dies while a program of the node has something to say to the pod by TCP. The kernel would go
// on sending that for a quarter of an hour, and the address rests only for a minute. The program
// is told that the connection is over, and the address's next owner hears nothing.
func TestHeirHearsNothingForTheDead(t *testing.T) {
	n := newNode(t, "cooldown: 2s\n"+plain+"- {name: one, cidrs: [10.99.0.7/32]}\n")
	dead, err := n.tryAdd("dead", `"pool":"one"`)
	must(t, err)
	l, err := net.Listen("tcp", net.JoinHostPort(node4.String(), "0"))
	must(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	must(t, dead.at.Do(func() error { _, err := net.Dial("tcp", l.Addr().String()); return err }))
	says := <-accepted
	defer says.Close()
	n.del(dead, wait)
	if _, err := says.Write([]byte("for the dead pod")); err == nil {
		t.Error("the node's program is not told that its connection is over")
	}
	var heir *pod
	nettest.Eventually(t, "the address to have rested", func() bool {
		heir, err = n.tryAdd("heir", `"pool":"one"`)
		return err == nil
	})
	if heir.ip4 != dead.ip4 {
		t.Fatalf("the heir has %s, not %s", heir.ip4, dead.ip4)
	}
	heard := listen(t, heir.at)
	time.Sleep(10 * time.Second) // the kernel tries after 0.2 s, and then each time after twice as long
	if s := heard.all(func(s seen) bool { return s.src == node4 && s.proto == tcp }); len(s) > 0 {
		t.Errorf("the heir hears %s", s[0])
	}
}

// A machine outside asks a service of the node, which another program leads to an address of the pool that no pod has
// and, for a while, has a way for: the connection goes to somebody else. Then the way and the service go, and a pod
// gets the address. The machine goes on asking by its connection, which the kernel keeps. The pod hears nothing, also if
// somebody has flushed the node's rules meanwhile.
func TestHeirHearsNothingThatWentElsewhere(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		t.Run(fmt.Sprintf("flushed is %t", flushed), func(t *testing.T) { hearsNothingThatWentElsewhere(t, flushed) })
	}
}

func hearsNothingThatWentElsewhere(t *testing.T, flushed bool) {
	n := newNode(t, "cooldown: 1s\n"+plain+"- {name: one, cidrs: [10.99.0.7/32]}\n")
	former, err := n.tryAdd("former", `"pool":"one"`)
	must(t, err)
	n.del(former, wait)
	nettest.Eventually(t, "the address to be free", func() bool {
		pools, err := n.API.Pools(t.Context())
		must(t, err)
		return pools[1].CIDRs[0].Used+pools[1].CIDRs[0].Resting == 0
	})
	nettest.Run(t, n.lan, "ip route add 10.99.0.7 via 192.0.2.1")
	var asks net.PacketConn
	must(t, n.lan.Do(func() (err error) { asks, err = net.ListenPacket("udp4", "192.0.2.2:6000"); return err }))
	defer asks.Close()
	ask := func() {
		_, err := asks.WriteTo([]byte("for somebody else"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(node4, 5353)))
		must(t, err)
	}
	kept := func() bool {
		out, err := exec.Command("conntrack", "-L", "-p", "udp").Output()
		must(t, err)
		return strings.Contains(string(out), "src=10.99.0.7 ")
	}
	nettest.Run(t, nil, "nft add table ip service")
	nettest.Run(t, nil, "nft add chain ip service in { type nat hook prerouting priority -100 ; }")
	nettest.Run(t, nil, "nft add rule ip service in udp dport 5353 dnat to 10.99.0.7:7777")
	nettest.Run(t, nil, "ip route add 10.99.0.7 via 192.0.2.2")
	nettest.Eventually(t, "the machine to have a connection", func() bool { ask(); return kept() })
	nettest.Run(t, nil, "ip route del 10.99.0.7 via 192.0.2.2")
	nettest.Run(t, nil, "nft delete table ip service")
	if ask(); !kept() {
		t.Fatal("the kernel has forgotten the connection")
	}
	if flushed {
		nettest.Run(t, nil, "nft flush ruleset")
	}
	heir, err := n.tryAdd("heir", `"pool":"one"`)
	must(t, err)
	heard := listen(t, heir.at)
	for range 20 {
		ask()
	}
	nettest.Ping(t, n.lan, heir.ip4) // behind which the node has seen all
	if s := heard.all(func(s seen) bool { return s.proto == udp }); len(s) > 0 {
		t.Errorf("the heir hears %s", s[0])
	}
}
