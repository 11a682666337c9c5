package hostile

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Somebody has given the node's end of a pod's link a link-local address, and has
// all links accept router advertisements: a network manager, a line in sysctl.conf.
// The pod asks for routers in the names of many neighbours, and says that it is a router.
// The node learns none of these neighbours, and no route.
func TestLinkLocalIsNotHeard(t *testing.T) {
	n := newNode(t, plain)
	a := n.add("a")
	nettest.Run(t, nil, "ip addr add fe80::77/64 dev "+a.host+" nodad")
	awaitRoute(t, "anycast fe80::/128", " dev "+a.host+" ")
	sysctl(t, "ipv6/conf/"+a.host+"/accept_ra", "2")
	p, w := newProbe(t, a.host), a.wire(t)
	learnt := func() nettest.State { return nettest.Snapshot(t, nil).Only("route", "neigh") }
	before := learnt()

	all, mac := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, slices.Concat([]byte{1, 1}, w.mac)
	for i := range 100 {
		src, dst := netip.MustParseAddr(fmt.Sprintf("fe80::bad:%x", i)), netip.MustParseAddr("ff02::1")
		w.send(ether(all, w.mac, icmpPacket(src, dst, 133, 0, slices.Concat(make([]byte, 4), mac))))                      // who routes?
		w.send(ether(all, w.mac, icmpPacket(src, dst, 134, 0, slices.Concat([]byte{64, 0, 7, 8}, make([]byte, 8), mac)))) // I do
	}
	p.settled(w, a)
	for _, passed := range p.passed(into) {
		if strings.HasPrefix(passed, "fe80:") {
			t.Errorf("passed into the node: %s", passed)
		}
	}
	nettest.Same(t, before, learnt(), "the node has learnt from a pod")
}
