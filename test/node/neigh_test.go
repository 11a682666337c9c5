package node

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// neighbourEntries is what the node knows of neighbours, permanent or learnt,
// that are on a link or have one of the addresses, on whatever link.
//
//	ip neighbour show nud all
func neighbourEntries(t *testing.T, index int, addrs []netip.Addr) (entries []netlink.Neigh) {
	t.Helper()
	all := nettest.List(t, func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) })
	for _, n := range all {
		addr, _ := netip.AddrFromSlice(n.IP)
		if n.LinkIndex == index || slices.Contains(addrs, addr.Unmap()) {
			entries = append(entries, n)
		}
	}
	return entries
}

// The node's neighbour entries of a pod, made by Berth or by the kernel, go with the pod
// however the pod ends. The node finds the next pod with the same addresses by that pod's own
// MAC: an entry that stayed would send the successor's packets to nobody (issue 3, "traces of
// traffic").
func TestNeighbourEntriesGo(t *testing.T) {
	hasAddresses(t)
	for _, c := range []struct {
		name string
		end  func(a *agent, pod *ns.Netns)
	}{
		{"deleted", func(a *agent, _ *ns.Netns) { a.del("c0", wait) }},
		{"deleted without an agent", func(a *agent, _ *ns.Netns) { a.kill(); a.del("c0"); a.start() }},
		{"its network namespace ends", func(a *agent, pod *ns.Netns) { nettest.Delete(t, pod) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAgent(t, nil)
			a.configure("cooldown: 1ms\nsweepInterval: 1s\npools:\n- {name: default, cidrs: [10.88.0.7/32, 'fd00:88::7/128']}\n")
			a.start()
			t.Cleanup(func() { a.releaseAll(); a.remove() }) // what learnt neighbours said leaves traces, which are not Berth's
			pods, got := a.podsOf(1)
			host := nettest.Link(t, got[0].host).Attrs().Index

			// Berth's own entries are permanent. The kernel learns an entry of an address that
			// somebody routes to the pod, and asks for other addresses in vain.
			routed := netip.MustParseAddr("203.0.113.9")
			nobody := []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:9::9")}
			for _, addr := range append(nobody, routed) {
				nettest.Run(t, nil, "ip route add "+addr.String()+" dev "+got[0].host)
			}
			nettest.Run(t, pods[0], "ip addr add 203.0.113.9/32 dev eth0")
			nettest.Ping(t, nil, routed)
			for _, addr := range nobody {
				nettest.NoPing(t, nil, addr)
			}
			known := slices.Concat(got[0].addrs, nobody, []netip.Addr{routed})
			permanent := map[netip.Addr]bool{}
			for _, n := range neighbourEntries(t, host, known) {
				addr, _ := netip.AddrFromSlice(n.IP)
				permanent[addr.Unmap()] = n.State&netlink.NUD_PERMANENT != 0
			}
			for i, addr := range known {
				if is, ok := permanent[addr]; !ok || is != (i < 2) {
					t.Fatalf("the node knows the neighbour %s: %t, for good: %t", addr, ok, is)
				}
			}

			c.end(a, pods[0])
			a.wantGone()
			if left := neighbourEntries(t, host, known); len(left) > 0 {
				t.Errorf("the pod is gone, and the node knows %v", left)
			}
			next := nettest.Pod(t)
			var heir attached
			nettest.Eventually(t, "the addresses to be given again", func() (ok bool) {
				var err error
				heir, err = a.tryAdd("c0", next)
				return err == nil
			})
			if !slices.Equal(heir.addrs, got[0].addrs) {
				t.Fatalf("the successor has %v, not %v", heir.addrs, got[0].addrs)
			}
			its := nettest.Link(t, heir.host).Attrs().Index
			for _, n := range neighbourEntries(t, its, known) {
				if n.LinkIndex != its {
					t.Errorf("of the successor's address the node knows %v, and its link is %d", n, its)
				}
			}
			pingAll(t, nil, heir)
		})
	}
}
