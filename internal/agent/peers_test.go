package agent

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/vxlan"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

// segment gives the node a link to the segment on which other nodes are, until the test ends.
func segment(t *testing.T) {
	t.Helper()
	nettest.Sysctl(t, nil, "ipv6/conf/all/forwarding", "1") // as the agent does: the kernel then has further routes
	for _, c := range []string{
		"ip link add seg0 type veth peer name seg1", "ip link set seg0 addrgenmode none", "ip link set seg1 addrgenmode none", "ip addr add 192.0.2.1/24 dev seg0", "ip addr add 2001:db8::1/64 dev seg0 nodad",
		"ip link set seg1 up", "ip link set seg0 up",
	} {
		nettest.Run(t, nil, c)
	}
	t.Cleanup(func() { nettest.Run(t, nil, "ip link del seg0") })
	nettest.Eventually(t, "the kernel to have made its routes", func() bool {
		routes := nettest.Snapshot(t, nil).Only("route").String()
		return strings.Contains(routes, "anycast 2001:db8::/128 dev seg0") && strings.Contains(routes, "local 2001:db8::1/128 dev seg0") &&
			strings.Contains(routes, "multicast ff00::/8 dev seg0") && strings.Contains(routes, "multicast ff00::/8 dev seg1")
	})
}

// other returns another node, whose addresses end in n and whose pods' CIDRs have the number c.
func other(name, n, c string) peers.Node {
	return peers.Node{
		Name:      name,
		CIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244." + c + ".0/24"), netip.MustParsePrefix("fd00:244:" + c + "::/64")},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2." + n), netip.MustParseAddr("2001:db8::" + n)},
	}
}

// keepPeers runs what makes the node agree with what it is told of other nodes, until the test ends.
func (r *rig) keepPeers() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	p := r.cluster.Peers
	go func() { defer close(done); p.Keep(ctx) }()
	return func() { cancel(); <-done }
}

// wantWays waits until the node's routes to other nodes' pods are as the text says: "CIDR NUMBER via ADDRESS's end".
func (r *rig) wantWays(ways ...string) {
	r.t.Helper()
	var want []string
	for _, w := range ways {
		c, n, _ := strings.Cut(w, " via ")
		want = append(want, "10.244."+c+".0/24 via 192.0.2."+n, "fd00:244:"+c+"::/64 via 2001:db8::"+n)
	}
	slices.Sort(want)
	var have []string
	look := func() bool {
		have = nil
		for line := range strings.Lines(nettest.Snapshot(r.t, nil).Only("route").String()) {
			f := strings.Fields(line)
			if via := slices.Index(f, "via"); via > 0 && (strings.HasPrefix(f[3], "10.244.") || strings.HasPrefix(f[3], "fd00:244:")) {
				have = append(have, f[3]+" via "+f[via+1])
			}
		}
		slices.Sort(have)
		return slices.Equal(have, want)
	}
	nettest.Eventually(r.t, "the routes to other nodes", look)
}

// Other nodes come, get other addresses and each other's CIDRs, and go. The node's routes follow, and nothing is left.
func TestOtherNodes(t *testing.T) {
	segment(t)
	r := start(t)
	stop := r.keepPeers()
	defer func() { stop() }()
	r.cluster.Peers.All([]peers.Node{other("a", "11", "1"), other("b", "12", "2")})
	r.wantWays("1 via 11", "2 via 12")
	r.cluster.Peers.Put(other("a", "21", "1"))
	r.wantWays("1 via 21", "2 via 12")
	r.cluster.Peers.Put(other("c", "13", "3"))
	r.cluster.Peers.Drop("b")
	r.wantWays("1 via 21", "3 via 13")
	r.cluster.Peers.Put(other("d", "14", "1")) // which a has
	r.cluster.Peers.Put(other("e", "15", "5"))
	r.wantWays("1 via 21", "3 via 13", "5 via 15")
	if err := r.cluster.Peers.Failed()["d"]; err == nil || !strings.Contains(err.Error(), "of node a") {
		t.Errorf("two nodes with one CIDR: %v", err)
	}
	r.cluster.Peers.Drop("a")
	r.wantWays("1 via 14", "3 via 13", "5 via 15")
	r.cluster.Peers.All([]peers.Node{other("c", "13", "5"), other("e", "15", "3")}) // which have changed places
	r.wantWays("5 via 13", "3 via 15")
	r.wantClean()

	// Nobody tells the next agent of nodes: the API server is away.
	stop()
	r.restart()
	stop = r.keepPeers()
	nettest.Run(t, nil, "ip route del 10.244.5.0/24 via 192.0.2.13 metric "+metricOf(t, "10.244.5.0/24"))
	r.Sweep(t.Context())
	r.wantWays("5 via 13", "3 via 15")
	r.cluster.Peers.Put(other("f", "16", "6"))
	r.wantWays("5 via 13", "3 via 15", "6 via 16")
	r.cluster.Peers.All([]peers.Node{other("f", "16", "6")})
	r.wantWays("6 via 16")
	r.wantClean()
}

// Somebody takes the node's only IPv4 address and gives it back, and the kernel takes all routes through the link without a word. The ways are put
// right when the agent hears of the address.
func TestWaysOutliveTheNodesAddress(t *testing.T) {
	segment(t)
	r := start(t)
	defer r.keepPeers()()
	r.cluster.Peers.All([]peers.Node{other("a", "11", "1")})
	r.wantWays("1 via 11")
	nettest.Run(t, nil, "ip -4 addr flush dev seg0")
	nettest.Run(t, nil, "ip addr add 192.0.2.1/24 dev seg0")
	r.cluster.Peers.Look()
	r.wantWays("1 via 11")
	r.wantClean()
}

// Another node boots, with another network card: the kernel forgets the MAC of the former one. It remembers the MACs of nodes of which
// there is other news.
func TestOtherNodeBoots(t *testing.T) {
	segment(t)
	r := start(t)
	defer r.keepPeers()()
	conn, err := rtnl.Open(nil)
	must(t, err)
	defer conn.Close()
	remembered := func(n peers.Node) (known int) {
		link, err := r.node.Conn.Link("seg0")
		must(t, err)
		for _, a := range n.Addresses {
			var state string
			if conn.Do(rtnl.NeighbourState(a, link.Index, &state)) == nil {
				known++
			}
		}
		return known
	}
	booted := func(name, n, c, boot string) peers.Node {
		o := other(name, n, c)
		o.Boot = boot
		return o
	}
	a, b := booted("a", "11", "1", "x"), booted("b", "12", "2", "x")
	r.cluster.Peers.All([]peers.Node{a, b})
	r.wantWays("1 via 11", "2 via 12")
	for _, addr := range slices.Concat(a.Addresses, b.Addresses) {
		nettest.Run(t, nil, "ip neigh replace "+addr.String()+" lladdr 02:00:00:00:00:77 dev seg0 nud reachable")
	}
	r.cluster.Peers.Put(booted("b", "12", "3", "x"))
	r.wantWays("1 via 11", "3 via 12")
	if n := remembered(b); n != 2 {
		t.Errorf("%d of 2 addresses are remembered of a node that has not booted", n)
	}
	r.cluster.Peers.Put(booted("a", "11", "1", "y"))
	nettest.Eventually(t, "the kernel to have forgotten the node's card", func() bool { return remembered(a) == 0 })
	r.cluster.Peers.All([]peers.Node{booted("a", "11", "1", "y"), booted("b", "12", "3", "y")})
	nettest.Eventually(t, "the kernel to have forgotten the other node's card", func() bool { return remembered(b) == 0 })
}

func metricOf(t *testing.T, cidr string) string {
	t.Helper()
	for line := range strings.Lines(nettest.Snapshot(t, nil).Only("route").String()) {
		if strings.Contains(line, " "+cidr+" ") {
			if _, rest, ok := strings.Cut(line, "metric "); ok {
				return strings.Fields(rest)[0]
			}
		}
	}
	t.Fatalf("no route to %s", cidr)
	return ""
}

// A node whose CIDR is this node's, or whose address is on no link, gets no route, and a node that has an address of one family alone
// gets the route of that family. None of them keeps another node from its own.
func TestOtherNodesThatCannotBe(t *testing.T) {
	segment(t)
	r := start(t, "default=10.244.7.0/24,fd00:244:7::/64")
	stop := r.keepPeers()
	defer stop()
	noSuch := other("away", "1", "8")
	noSuch.Addresses[0] = netip.MustParseAddr("198.51.100.1")
	single := other("single", "12", "9")
	single.Addresses = single.Addresses[:1]
	r.cluster.Peers.All([]peers.Node{other("ours", "11", "7"), noSuch, single, other("well", "13", "3")})
	want := []string{"10.244.3.0/24 via 192.0.2.13 dev seg0", "10.244.9.0/24 via 192.0.2.12 dev seg0", "fd00:244:3::/64 via 2001:db8::13 dev seg0"}
	nettest.Eventually(t, "the ways that there can be", func() bool { return slices.Equal(ways(t), want) })
	for name, says := range map[string]string{"ours": "this node's", "away": "unreachable", "single": "no address of the family"} {
		if err := r.cluster.Peers.Failed()[name]; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
	r.cluster.Peers.Put(other("single", "12", "9")) // it has the other family now
	r.wantWays("3 via 13", "9 via 12")
	if err := r.cluster.Peers.Failed()["single"]; err != nil {
		t.Errorf("a node that has both ways: %v", err)
	}
	r.cluster.Peers.Put(single)
	nettest.Eventually(t, "the way of the family that the node has no address of any more to go", func() bool { return slices.Equal(ways(t), want) })
}

// ways returns the node's routes to other nodes' pods, without their metrics.
func ways(t *testing.T) (all []string) {
	for line := range strings.Lines(nettest.Snapshot(t, nil).Only("route").String()) {
		f := strings.Fields(line)
		if via := slices.Index(f, "via"); via > 0 && (strings.HasPrefix(f[3], "10.244.") || strings.HasPrefix(f[3], "fd00:244:")) {
			all = append(all, strings.Join([]string{f[3], "via", f[via+1], "dev", f[via-1]}, " "))
		}
	}
	slices.Sort(all)
	return all
}

// With the routing auto, packets to nodes on a link of this node go natively, and packets to nodes behind a router through
// the tunnel. The tunnel is put right with all that it leads to, follows this node's addresses, and goes when nobody needs it.
func TestTunnel(t *testing.T) {
	segment(t)
	nettest.Run(t, nil, "ip route add 198.51.100.0/24 via 192.0.2.254")
	nettest.Run(t, nil, "ip route add 2001:db8:1::/64 via 2001:db8::fe")
	r := start(t, "default=10.244.7.0/24,fd00:244:7::/64")
	device := "berth-" + r.node.Instance[:4]
	self, far := other("self", "1", "7"), other("far", "12", "2")
	far.Addresses = []netip.Addr{netip.MustParseAddr("198.51.100.12"), netip.MustParseAddr("2001:db8:1::12")}
	r.cluster.Peers.Routing, r.cluster.Peers.VXLAN = config.RoutingAuto, config.VXLAN{VNI: 98, Port: 4789}
	stop := r.keepPeers()
	defer func() { stop() }()
	r.cluster.Peers.Self(self)
	r.cluster.Peers.All([]peers.Node{other("near", "11", "1"), far})
	r.inCluster()
	early := []netip.Prefix{netip.MustParsePrefix("10.244.8.0/24"), netip.MustParsePrefix("fd00:244:8::/64")}
	r.cluster.Peers.Self(peers.Node{Name: "self", CIDRs: early, Addresses: self.Addresses})
	nettest.Eventually(t, "the device to have addresses of a pool that the agent has not taken yet", func() bool {
		return strings.Contains(nettest.Snapshot(t, nil).String(), early[0].Addr().String()+"/32")
	})
	must(t, r.ground.Give(t.Context(), config.NodeGiven(early)))
	near := []string{"10.244.1.0/24 via 192.0.2.11 dev seg0", "fd00:244:1::/64 via 2001:db8::11 dev seg0"}
	through := []string{
		"10.244.2.0/24 via 198.51.100.12 dev " + device,
		"fd00:244:2::/64 via " + vxlan.Gateway6(far.Addresses[0]).String() + " dev " + device,
	}
	want := func(wanted ...string) {
		t.Helper()
		slices.Sort(wanted)
		var have []string
		nettest.Eventually(t, strings.Join(wanted, ", "), func() bool { have = ways(t); return slices.Equal(have, wanted) })
	}
	want(slices.Concat(near, through)...)
	nettest.Eventually(t, "the table to know of the tunnel", func() bool {
		return strings.Contains(nettest.Snapshot(t, nil).String(), "tunnel_in")
	})
	r.wantClean()
	if mtu := r.ground.MTU(); mtu != 1450 {
		t.Errorf("pods have an MTU of %d bytes", mtu)
	}

	watching, watched := context.WithCancel(t.Context())
	r.mend.Listen(r.drain.Waiting)
	ended := make(chan struct{})
	go func() { defer close(ended); r.mend.Keep(watching) }()
	for _, harm := range []string{"del " + device, "set down dev " + device, "set mtu 1300 dev " + device} {
		nettest.Run(t, nil, "ip link "+harm)
		nettest.Eventually(t, "the device to be as it was after ip link "+harm, func() bool {
			l, err := r.node.Conn.Link(device)
			return err == nil && l.Up && l.MTU == 1450
		})
		want(slices.Concat(near, through)...)
		r.wantClean()
	}
	watched()
	<-ended

	self.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.2"), self.Addresses[1]} // so that the device is made anew
	r.cluster.Peers.Self(self)
	nettest.Eventually(t, "the device to be of the new address", func() bool {
		l, err := r.node.Conn.Link(device)
		return err == nil && l.MAC == vxlan.MACOf(self.Addresses[0])
	})
	want(slices.Concat(near, through)...)

	far.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.12"), netip.MustParseAddr("2001:db8::12")} // moved to this segment
	r.cluster.Peers.Put(far)
	native := []string{"10.244.2.0/24 via 192.0.2.12 dev seg0", "fd00:244:2::/64 via 2001:db8::12 dev seg0"}
	want(slices.Concat(near, native)...)
	r.wantClean()

	// The next agent's configuration wants no tunnel. Its API server is away at first.
	stop()
	r.restart()
	r.cluster.Peers.Routing = config.RoutingNative
	stop = r.keepPeers()
	r.cluster.Peers.All([]peers.Node{far})
	want(native...)
	nettest.Eventually(t, "the device to be gone", func() bool { _, err := r.node.Conn.Link(device); return err != nil })
	r.wantClean()
}
