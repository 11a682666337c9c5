package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/kernel/wireguard/wgtest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/peers"
)

// The routing changes from native to WireGuard. The former ways close as soon as the agent is there, and nobody has to tell it of nodes.
// Without a device, what the agent tries and fails to do brings no way in clear back, and a new node's CIDRs are closed, too.
func TestClosedWhateverFails(t *testing.T) {
	segment(t)
	r := newRig(t, "default=10.244.7.0/24,fd00:244:7::/64")
	var none atomic.Bool
	play := wgtest.New(t, nil).Make
	r.wire = func(name string, mtu int) error {
		if none.Load() {
			return kernel.ErrUnsupported
		}
		return play(name, mtu)
	}
	r.begin()
	stop := r.keepPeers()
	defer func() { stop() }()
	r.cluster.Peers.All([]peers.Node{other("a", "11", "1")})
	r.wantWays("1 via 11")
	stop()
	r.restart()
	var cluster hearing
	r.seal(&cluster)
	stop = r.keepPeers()
	r.wantSealed(nil, "1")
	r.wantClean()

	r.cluster.Peers.Self(other("self", "1", "7"))
	nettest.Eventually(t, "the device to be there", func() bool { return cluster.told() != peers.WireGuard{} })
	none.Store(true)
	nettest.Run(t, nil, "ip link del "+r.device())
	r.cluster.Peers.All([]peers.Node{keyed("a", "11", "1", 1), keyed("b", "12", "2", 2)})
	nettest.Eventually(t, "the agent to have tried", func() bool { return len(r.cluster.Peers.Failed()) == 2 })
	r.wantSealed(nil, "1", "2")
	none.Store(false)
	r.Sweep(t.Context())
	r.wantSealed([]string{"1 to 1", "2 to 2"})
	r.wantClean()
}

// Nodes claim CIDRs that others have, or in which they or this node have their own addresses. What nobody else has is closed, what nodes have by right
// they keep, and a CIDR that moves leaves its former peer, also if that node cannot be reached as it should.
func TestWireGuardClaims(t *testing.T) {
	segment(t)
	r := newRig(t, "default=10.244.7.0/24,fd00:244:7::/64")
	r.wire = wgtest.New(t, nil).Make
	r.begin()
	var cluster hearing
	r.seal(&cluster)
	defer r.keepPeers()()
	p := netip.MustParsePrefix
	with := func(name, n string, key byte, cidrs ...string) peers.Node {
		node := keyed(name, n, "0", key)
		node.CIDRs = nil
		for _, c := range cidrs {
			node.CIDRs = append(node.CIDRs, p(c))
		}
		return node
	}
	want := func(allowed map[byte]string, routes ...string) {
		t.Helper()
		nettest.Eventually(t, fmt.Sprint(allowed, routes), func() bool {
			d, err := wireguard.Open(nil).Device(r.device())
			for _, p := range d.Peers {
				for n, ips := range allowed {
					if p.PublicKey == keyOf(n) && fmt.Sprint(p.AllowedIPs) != ips {
						return false
					}
				}
			}
			return err == nil && len(d.Peers) == len(allowed) && slices.Equal(sealedRoutes(t), slices.Sorted(slices.Values(routes)))
		})
	}
	both := func(cidr string) []string { return []string{cidr + " " + r.device(), cidr + " unreachable"} }

	r.cluster.Peers.Self(other("self", "1", "7"))
	r.cluster.Peers.All([]peers.Node{
		with("a", "11", 1, "10.244.1.0/24"), with("b", "12", 2, "10.244.2.0/24", "10.244.3.0/24"),
	})
	want(map[byte]string{1: "[10.244.1.0/24]", 2: "[10.244.2.0/24 10.244.3.0/24]"},
		slices.Concat(both("10.244.1.0/24"), both("10.244.2.0/24"), both("10.244.3.0/24"))...)

	all := []peers.Node{
		with("a", "11", 1, "10.244.1.0/24", "10.244.3.0/24"),
		with("b", "12", 2, "10.244.2.0/24", "10.244.7.0/25"), // this node's
		with("d", "14", 4, "10.244.1.0/24", "fd00:244:4::/64"),
		with("n", "15", 5, "192.0.2.0/29"), with("q", "200", 8, "192.0.2.192/28"),
	}
	r.cluster.Peers.All(all)
	settled := func() {
		t.Helper()
		want(map[byte]string{1: "[10.244.1.0/24 10.244.3.0/24]", 2: "[10.244.2.0/24]"},
			slices.Concat(both("10.244.1.0/24"), both("10.244.2.0/24"), both("10.244.3.0/24"), []string{"fd00:244:4::/64 unreachable"})...)
	}
	settled()
	for name, says := range map[string]string{
		"b": "overlaps this node's", "d": "overlaps those of node a",
		"n": "has this node's address 192.0.2.1", "q": "has the node's own address 192.0.2.200",
	} {
		nettest.Eventually(t, name+" "+says, func() bool {
			err := r.cluster.Peers.Failed()[name]
			return err != nil && strings.Contains(err.Error(), says)
		})
	}
	if routes := nettest.Snapshot(t, nil).Only("route").String(); strings.Contains(routes, "192.0.2.0/29") || strings.Contains(routes, "192.0.2.192/28") {
		t.Errorf("routes to nodes' own addresses:\n%s", routes)
	}
	for range 2 {
		r.Sweep(t.Context())
		settled()
	}
	r.wantClean()

	// A node that calls itself an address of another one's pods takes nothing from them.
	liar := with("liar", "17", 7, "10.244.6.0/24")
	liar.Addresses = append(liar.Addresses, netip.MustParseAddr("10.244.2.9"))
	r.cluster.Peers.All(append(all[:1:1], with("b", "12", 2, "10.244.2.0/24"), liar))
	want(map[byte]string{1: "[10.244.1.0/24 10.244.3.0/24]", 2: "[10.244.2.0/24]", 7: "[10.244.6.0/24]"},
		slices.Concat(both("10.244.1.0/24"), both("10.244.2.0/24"), both("10.244.3.0/24"), both("10.244.6.0/24"))...)
	r.wantClean()
}
