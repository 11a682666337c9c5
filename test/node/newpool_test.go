package node

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// A reload or a start brings a pool. The kernel remembers traffic of an address that a pod of another program
// had before. Whoever gets the address gets nothing of that traffic.
func TestNewPoolsFormerTraffic(t *testing.T) {
	const without = "pools:\n- {name: b, cidrs: [10.89.0.0/24]}\n"
	const with = without + "- {name: a, cidrs: [10.88.0.7/32]}\n"
	t.Run("reload", func(t *testing.T) {
		a := newAgent(t, nil)
		defer func() { a.releaseAll(); a.remove() }() // other tests have these pools, too
		a.configure(without)
		a.startWatched()
		at := formerTraffic(t)
		a.configure(with)
		a.reload(inForce)
		a.wantForgotten(at)
	})
	t.Run("start without the route", func(t *testing.T) {
		a := newAgent(t, nil)
		defer func() { a.releaseAll(); a.remove() }()
		a.configure(with)
		a.startWatched()
		a.kill()
		nettest.Run(t, nil, "ip route del unreachable 10.88.0.7/32")
		at := formerTraffic(t)
		a.start()
		a.wantForgotten(at)
	})
	t.Run("first start", func(t *testing.T) {
		nettest.Program(t, "nft")
		for _, c := range []string{"table inet other", "chain inet other out { type filter hook output priority 0; }", "rule inet other out ct state new accept"} {
			nettest.Run(t, nil, "nft add "+c) // so that the kernel tracks connections without an agent
		}
		defer nettest.Run(t, nil, "nft delete table inet other")
		a := newAgent(t, nil)
		defer func() { a.releaseAll(); a.remove() }()
		at := formerTraffic(t)
		a.configure(with)
		a.start()
		a.wantForgotten(at)
	})
}

// Somebody's route leads packets for a pool's free addresses out of the node, past the pool's own route. A pod
// that gets such an address gets nothing of the connections that came so.
func TestFreeAddressesThatHadAWay(t *testing.T) {
	a := newAgent(t, nil)
	defer func() { a.releaseAll(); a.remove() }()
	a.configure("pools:\n- {name: a, cidrs: [10.88.0.6/31]}\n")
	a.startWatched()
	sent := []netip.Addr{netip.MustParseAddr("10.88.0.6"), netip.MustParseAddr("10.88.0.7")}
	away(t, sent...)
	for _, to := range sent {
		send(t, to)
	}
	if got := a.add("pod", nettest.Pod(t)).addrs[0]; !slices.Contains(sent, got) || tracked(t, got) {
		t.Errorf("the kernel remembers traffic of %s when a pod gets it", got)
	}
}

// Somebody's route leads packets for a deleted pod out of the node, also behind the rest of the pod's address,
// and goes. The pod that gets the address next gets nothing of the connections that came so.
func TestFormerAddressThatHadAWay(t *testing.T) {
	a := newAgent(t, nil)
	defer func() { a.releaseAll(); a.remove() }()
	a.configure("sweepInterval: 1h\ncooldown: 100ms\npools:\n- {name: a, cidrs: [10.88.0.6/31]}\n")
	a.startWatched()
	a.add("stays", nettest.Pod(t))
	at := a.add("former", nettest.Pod(t)).addrs[0]
	elsewhere := away(t, at)
	a.del("former", wait)
	send(t, at)
	nettest.Eventually(t, "the pass behind the rest", func() bool { return !tracked(t, at) })
	send(t, at)
	elsewhere()
	a.wantForgotten(at)
}

// away leads packets for 10.88.0.6/31 out of the node, past a pool's own route, until the function that it
// returns is called, or the test ends. Packets for `at` get somewhere.
func away(t *testing.T, at ...netip.Addr) (end func()) {
	nettest.Run(t, nil, "ip link add elsewhere type veth peer name inside")
	end = sync.OnceFunc(func() { nettest.Run(t, nil, "ip link del elsewhere") })
	t.Cleanup(end)
	for _, end := range []string{"elsewhere", "inside"} {
		nettest.Run(t, nil, "ip link set "+end+" up")
	}
	nettest.Run(t, nil, "ip route add 10.88.0.6/31 dev elsewhere metric 1")
	for _, a := range at {
		nettest.Run(t, nil, "ip neigh add "+a.String()+" lladdr 02:00:00:00:00:07 dev elsewhere")
	}
	return end
}

// send sends to an address until the kernel remembers that.
func send(t *testing.T, to netip.Addr) {
	t.Helper()
	client, err := net.Dial("udp", netip.AddrPortFrom(to, 7777).String())
	must(t, err)
	defer client.Close()
	nettest.Eventually(t, "the kernel remembers the traffic", func() bool {
		_, _ = client.Write([]byte("to nobody"))
		return tracked(t, to)
	})
}

// A flow by a host port leads to the port's former pod, and the agent ends before it has looked for such flows.
// The next agent has the flow forgotten.
func TestHostPortOfAnAgentThatEnded(t *testing.T) {
	a := newAgent(t, nil)
	defer func() { a.releaseAll(); a.remove() }()
	a.configure("pools:\n- {name: a, cidrs: [10.88.0.0/24]}\n")
	a.start()
	nettest.Run(t, nil, "ip addr add 192.0.2.9/32 dev lo")
	defer nettest.Run(t, nil, "ip addr del 192.0.2.9/32 dev lo")
	a.add("pod", nettest.Pod(t), hostPorts(`{"hostPort":8080,"containerPort":80,"protocol":"udp"}`))
	a.kill()
	node, client, former := net.IP{192, 0, 2, 9}, net.IP{192, 0, 2, 1}, net.IP{10, 99, 0, 250}
	must(t, netlink.ConntrackCreate(netlink.ConntrackTable, netlink.FAMILY_V4, &netlink.ConntrackFlow{
		FamilyType: netlink.FAMILY_V4, TimeOut: 600,
		Forward: netlink.IPTuple{SrcIP: client, DstIP: node, SrcPort: 1000, DstPort: 8080, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: former, DstIP: client, SrcPort: 80, DstPort: 1000, Protocol: unix.IPPROTO_UDP},
	}))
	if !tracked(t, netip.MustParseAddr("192.0.2.9")) {
		t.Fatal("there is no flow")
	}
	a.start()
	nettest.Eventually(t, "the flow is forgotten", func() bool { return !tracked(t, netip.MustParseAddr("192.0.2.9")) })
}

// wantForgotten attaches a pod with the pool's only address.
func (a *agent) wantForgotten(at netip.Addr) {
	a.t.Helper()
	a.add("heir", nettest.Pod(a.t), `"pool":"a"`)
	if tracked(a.t, at) {
		a.t.Error("the kernel remembers the traffic when the pool's address is given out")
	}
}

// formerTraffic sends to an address that another program's pod has, and takes that pod away.
func formerTraffic(t *testing.T) netip.Addr {
	t.Helper()
	at := netip.MustParseAddr("10.88.0.7")
	nettest.Run(t, nil, "ip link add former type veth peer name inside")
	for _, end := range []string{"former", "inside"} {
		nettest.Run(t, nil, "ip link set "+end+" up")
	}
	nettest.Run(t, nil, "ip route add 10.88.0.0/24 dev former")
	nettest.Run(t, nil, "ip neigh add 10.88.0.7 lladdr 02:00:00:00:00:07 dev former")
	client, err := net.Dial("udp", "10.88.0.7:7777")
	must(t, err)
	defer client.Close()
	_, err = client.Write([]byte("to the former pod"))
	must(t, err)
	nettest.Eventually(t, "the kernel remembers the traffic", func() bool { return tracked(t, at) })
	nettest.Run(t, nil, "ip link del former")
	return at
}

// tracked reports whether connection tracking has an entry that begins with packets to an address.
func tracked(t *testing.T, to netip.Addr) bool {
	t.Helper()
	all := nettest.List(t, func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	})
	for _, f := range all {
		if dst, _ := netip.AddrFromSlice(f.Forward.DstIP); dst.Unmap() == to {
			return true
		}
	}
	return false
}
