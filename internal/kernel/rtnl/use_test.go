package rtnl_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// Uses are addresses, routes of any table, and gateways, also those of multipath routes and of
// the other family. A default route is no use, but its gateway is. Among Berth's routes, the routes of
// pools are uses, and say whose they are.
func TestUses(t *testing.T) {
	nettest.Need(t)
	pod := nettest.Pod(t)
	metric, err := stamp.MetricOf("bcde")
	must(t, err)
	for _, command := range []string{
		"ip link add eth0 type bridge",
		"ip link set eth0 up",
		"ip link add eth1 type bridge",
		"ip link set eth1 up",
		"ip addr add 192.0.2.5/24 dev eth0",
		"ip addr add 2001:db8::5/64 dev eth0 nodad",
		"ip addr add 198.51.100.1 peer 198.51.100.2 dev eth1",
		"ip route add default via 192.0.2.1 dev eth0",
		"ip -6 route add default via 2001:db8::1 dev eth0",
		"ip route add 10.1.0.0/16 via 192.0.2.2 dev eth0",
		"ip route add 10.2.0.0/16 dev eth1 table 100",
		"ip route add blackhole 10.3.0.0/16",
		"ip route add 10.4.0.0/16 nexthop via 192.0.2.3 dev eth0 nexthop via 192.0.2.4 dev eth0",
		"ip route add 10.5.0.0/16 via inet6 2001:db8::9 dev eth0",
		"ip route add unreachable 10.6.0.0/16 proto 98",
		"ip route add 10.7.0.1 dev eth1 proto 98",
		"ip route add unreachable 10.8.0.0/16 proto 98 metric " + fmt.Sprint(metric),
		"ip route add unreachable 2001:db8:8::/64 proto 98 metric " + fmt.Sprint(metric),
	} {
		nettest.Run(t, pod, command)
	}
	var got []string
	must(t, pod.Do(func() error {
		c, err := rtnl.Here()
		must(t, err)
		defer c.Close()
		uses, err := c.Uses()
		for _, u := range uses {
			if u.Prefix.Addr().IsLinkLocalUnicast() || u.Prefix.Addr().IsLoopback() {
				continue // each link of IPv6 has such an address, and so has lo
			}
			text := fmt.Sprint(u.Sort, " ", u.Prefix)
			if u.Via.IsValid() {
				text += " via " + u.Via.String()
			}
			if u.Table != 0 && u.Table != 254 {
				text += fmt.Sprint(" table ", u.Table)
			}
			if u.Agent != "" {
				text += fmt.Sprint(" of ", u.Agent, u.Index)
			}
			if !slices.Contains(got, text) {
				got = append(got, text)
			}
		}
		return err
	}))
	want := []string{
		"address 192.0.2.5/24", "address 198.51.100.1/32", "address 2001:db8::5/64",
		"route 192.0.2.0/24", "route 198.51.100.2/32", "route 2001:db8::/64",
		"gateway 192.0.2.1/32", "gateway 2001:db8::1/128",
		"route 10.1.0.0/16 via 192.0.2.2", "gateway 192.0.2.2/32", "route 10.2.0.0/16 table 100", "route 10.3.0.0/16",
		"route 10.4.0.0/16 via 192.0.2.3", "gateway 192.0.2.3/32", "gateway 192.0.2.4/32",
		"route 10.5.0.0/16 via 2001:db8::9", "gateway 2001:db8::9/128",
		"route 10.8.0.0/16 of bcde0", "route 2001:db8:8::/64 of bcde0",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}
