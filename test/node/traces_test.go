package node

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// service is an address that rules of somebody else's translate to pods'.
var (
	service    = netip.MustParseAddr("198.51.100.1")
	clientAddr = netip.MustParseAddr("192.0.2.2")
)

// Ports of the service.
const (
	victimPort = 53 // UDP, to the pod that is deleted
	otherPort  = 54 // UDP, to the pod that stays
	tcpPort    = 80
)

// dnatRule is one port of the service.
type dnatRule struct {
	proto byte
	port  uint16
	to    netip.AddrPort
}

// lag writes the rules of a service, as kube-proxy does, and returns a function that takes the
// rules away, which kube-proxy does too late.
//
//	table ip lag { chain c { type nat hook prerouting priority dstnat;
//		ip daddr SERVICE PROTO dport PORT dnat to ADDR:PORT } }
func lag(t *testing.T, rules ...dnatRule) (catchUp func()) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "lag"})
	chain := c.AddChain(&nftables.Chain{
		Name: "c", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	for _, r := range rules {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: service.AsSlice()},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{r.proto}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, r.port)},
			&expr.Immediate{Register: 1, Data: r.to.Addr().AsSlice()},
			&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, r.to.Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
		}})
	}
	if err := c.Flush(); err != nil {
		t.Fatalf("nft: %v", err)
	}
	gone := false
	catchUp = func() {
		if gone {
			return
		}
		gone = true
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			t.Errorf("nft delete table ip lag: %v", err)
		}
	}
	t.Cleanup(catchUp)
	return catchUp
}

// outside makes a machine beyond the node, which is the gateway of the node's default route.
func outside(t *testing.T) *ns.Netns {
	t.Helper()
	client := nettest.Node(t)
	nettest.Run(t, nil, "ip link add up0 type veth peer name eth0 netns "+filepath.Base(client.Ref().Path))
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del up0") })
	for at, lines := range map[*ns.Netns][]string{
		nil:    {"ip addr add 192.0.2.1/24 dev up0", "ip addr add 2001:db8:2::1/64 dev up0 nodad", "ip link set up0 up"},
		client: {"ip addr add 192.0.2.2/24 dev eth0", "ip addr add 2001:db8:2::2/64 dev eth0 nodad", "ip link set eth0 up"},
	} {
		for _, line := range lines {
			nettest.Run(t, at, line)
		}
	}
	for _, f := range []struct{ node, client string }{{"192.0.2.1", "192.0.2.2"}, {"2001:db8:2::1", "2001:db8:2::2"}} {
		nettest.Run(t, client, "ip route add default via "+f.node)
		nettest.Run(t, nil, "ip route add default via "+f.client)
	}
	return client
}

// dial opens a UDP socket in the client that sends to a port of the service,
// again and again until the test ends.
func dial(t *testing.T, client *ns.Netns, port uint16) {
	t.Helper()
	var conn *net.UDPConn
	inside(t, client, func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(service, port)))
		return err
	})
	keepSending(t, conn, []byte("!"))
}

// keepSending sends a packet each millisecond until the test ends, and closes conn then.
func keepSending(t *testing.T, conn net.Conn, packet []byte) {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	nettest.Meanwhile(t, func() {
		time.Sleep(time.Millisecond)
		_, _ = conn.Write(packet) // refused as long as nobody is there
	})
}

// No packet of a flow to a dead pod reaches the pod that has its address next, although the
// rule that leads there lagged behind and the client never stops: not of a flow that the dead
// pod had, nor of one that began in its cooldown, nor if the pool's unreachable route was
// missing meanwhile: then only the rinsing at the end of the cooldown helps. Flows of other
// pods go on. containernetworking/plugins #123, #1190; amazon-vpc-cni #3634; cilium #46677.
func TestTracesOfTraffic(t *testing.T) {
	for _, c := range []struct {
		name         string
		early, late  bool // a flow begins before the deletion; or after it
		withoutRoute bool
	}{
		{"of the dead pod", true, false, false},
		{"begun in the cooldown", false, true, false},
		{"begun without the pool's route", false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := outside(t)
			a := newAgent(t, nil)
			a.configure("sweepInterval: 1h\ncooldown: 300ms\npools:\n- name: default\n  cidrs: [10.88.0.0/30]\n")
			a.start()
			t.Cleanup(func() { a.releaseAll(); a.remove() })
			other, victim := nettest.Pod(t), nettest.Pod(t)
			stays, dies := a.add("other", other).addrs[0], a.add("victim", victim).addrs[0]
			catchUp := lag(t,
				dnatRule{unix.IPPROTO_UDP, victimPort, netip.AddrPortFrom(dies, earPort)},
				dnatRule{unix.IPPROTO_UDP, otherPort, netip.AddrPortFrom(stays, earPort)},
				dnatRule{unix.IPPROTO_TCP, tcpPort, netip.AddrPortFrom(stays, tcpPort)})
			alive := flow(t, client, other, netip.AddrPortFrom(stays, tcpPort), netip.AddrPortFrom(service, tcpPort))
			otherEar := listen(t, other, stays)[0]
			dial(t, client, otherPort)
			nettest.Eventually(t, "the other pod to hear the client", func() bool { return otherEar.hears(clientAddr) })
			if c.early {
				ear := listen(t, victim, dies)[0]
				dial(t, client, victimPort)
				nettest.Eventually(t, "the pod to hear the client", func() bool { return ear.hears(clientAddr) })
			}
			a.del("victim", wait)
			if c.withoutRoute {
				a.kill()
				nettest.Run(t, nil, "ip route del unreachable 10.88.0.0/30")
			}
			if c.late {
				dial(t, client, victimPort)
			}
			if c.withoutRoute {
				nettest.Eventually(t, "a trace of the client", func() bool {
					return strings.Contains(nettest.Snapshot(t, nil).Only("conntrack").String(), fmt.Sprintf("reply src %s dst %s", dies, clientAddr))
				})
			}
			catchUp()
			if c.withoutRoute {
				a.start()
			}

			next := nettest.Pod(t)
			nettest.Eventually(t, "the address to be given again", func() bool {
				got, err := a.tryAdd("next", next)
				return err == nil && got.addrs[0] == dies
			})
			ears := listen(t, next, dies)
			nettest.Eventually(t, "the successor to hear the node", func() bool {
				speak(t, nil, ears)
				return ears[0].hears(netip.MustParseAddr("192.0.2.1"))
			})
			for range 50 { // as long as the client takes for about fifty packets to each port
				otherEar.forget()
				nettest.Eventually(t, "the other pod to hear the client still", func() bool { return otherEar.hears(clientAddr) })
			}
			if ears[0].hears(clientAddr) {
				t.Errorf("the successor hears who spoke to the dead pod; conntrack:\n%s", nettest.Snapshot(t, nil).Only("conntrack"))
			}
			if err := alive(); err != nil {
				t.Errorf("the other pod's TCP flow has ended: %v", err)
			}
		})
	}
}
