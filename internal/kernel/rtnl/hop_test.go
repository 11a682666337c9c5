package rtnl_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

func TestHops(t *testing.T) {
	c := open(t, nil)
	for _, line := range []string{
		"ip link add lan type veth peer name far", "ip link set far up", "ip addr add 192.0.2.1/24 dev lan", "ip addr add 2001:db8::1/64 dev lan nodad",
		"ip link set lan up", "ip route add 198.51.100.0/24 via 192.0.2.9", "ip route add 2001:db8:1::/64 via 2001:db8::9",
		"ip route add 198.51.101.0/24 via inet6 2001:db8::9",
	} {
		nettest.Run(t, nil, line)
	}
	defer nettest.Run(t, nil, "ip link del lan")
	var asked []netip.Addr
	var want []rtnl.Hop
	for _, test := range []struct {
		addr string
		hop  rtnl.Hop
	}{
		{"192.0.2.2", rtnl.OnLink}, {"2001:db8::2", rtnl.OnLink},
		{"198.51.100.1", rtnl.Router}, {"198.51.101.1", rtnl.Router}, {"2001:db8:1::1", rtnl.Router},
		{"192.0.2.1", rtnl.NoHop}, {"2001:db8::1", rtnl.NoHop}, {"203.0.113.1", rtnl.NoHop}, {"2001:db8:2::1", rtnl.NoHop},
	} {
		asked, want = append(asked, addr(test.addr)), append(want, test.hop)
	}
	if got := c.Hops(asked); !slices.Equal(got, want) {
		t.Errorf("hops to %v are %v, not %v", asked, got, want)
	}
}
