package rtnl_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Reached tells addresses that somebody has from those to which packets go nowhere, or by a route to more addresses.
func TestReached(t *testing.T) {
	pod := nettest.Pod(t)
	at := open(t, pod)
	for _, c := range []string{
		"ip link set lo up", "ip addr add 192.0.2.9/32 dev lo", "ip link add out type veth peer name end", "ip link set out up", "ip link set end up",
		"ip route add unreachable 10.88.0.0/16", "ip route add 10.88.1.0/24 dev out", "ip route add 10.88.1.7/32 dev out", "ip route add blackhole 10.89.0.0/16",
		"ip route add unreachable fd00:88::/64", "ip route add fd00:88::1:0/112 dev out", "ip route add fd00:88::1:7/128 dev out", "ip route add blackhole fd00:89::/64",
	} {
		nettest.Run(t, pod, c)
	}
	addrs := func(of ...string) (as []netip.Addr) {
		for _, a := range of {
			as = append(as, addr(a))
		}
		return as
	}
	nowhere := addrs("10.88.0.7", "10.89.0.7", "203.0.113.1", "fd00:88::7", "fd00:89::7", "2001:db8::1")
	away, own := addrs("10.88.1.8", "fd00:88::1:8"), addrs("10.88.1.7", "192.0.2.9", "fd00:88::1:7", "::1")
	if got := at.Reached(slices.Concat(nowhere, own, away)); !slices.Equal(got, own) {
		t.Errorf("reached are %v, want %v", got, own)
	}
}
