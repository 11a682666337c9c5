package rtnl_test

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// Uplinks are the links of default routes, of both families and of multipath routes. The
// smallest MTU among them counts.
func TestUplinkMTU(t *testing.T) {
	nettest.Need(t)
	pod := nettest.Pod(t)
	must(t, pod.Do(func() error {
		c, err := rtnl.Here()
		must(t, err)
		defer c.Close()
		want := func(mtu int) {
			t.Helper()
			if got, err := c.UplinkMTU(); err != nil || got != mtu {
				t.Errorf("got %d, %v; want %d", got, err, mtu)
			}
		}
		want(0)
		index := map[int]int{}
		for i, mtu := range []int{1500, 1400, 1300, 1280} {
			l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: string(rune('a' + i)), MTU: mtu}}
			must(t, netlink.LinkAdd(l))
			must(t, netlink.LinkSetUp(l))
			index[mtu] = l.Index
		}
		add := func(r netlink.Route) *netlink.Route {
			t.Helper()
			must(t, netlink.RouteAdd(&r))
			return &r
		}
		_, some, _ := net.ParseCIDR("192.0.2.0/24")
		add(netlink.Route{Dst: some, LinkIndex: index[1280]})
		add(netlink.Route{Dst: network4(), Table: 100, LinkIndex: index[1280]})
		add(netlink.Route{Dst: network4(), Type: unix.RTN_UNREACHABLE, Priority: 1000})
		want(0)
		add(netlink.Route{Dst: network4(), LinkIndex: index[1500], Priority: 5})
		want(1500)
		several := add(netlink.Route{Dst: network4(), Priority: 6, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: index[1500]}, {LinkIndex: index[1400]}}})
		want(1400)
		must(t, netlink.RouteDel(several))
		want(1500)
		add(netlink.Route{Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, LinkIndex: index[1300]})
		want(1300)
		return nil
	}))
}

// network4 returns the destination of an IPv4 default route.
func network4() *net.IPNet { return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)} }
