package rtnl_test

import (
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// Advertised returns the links to which a route by a router advertisement leads, in whatever table the
// route is, and also if it leads to several links. Advertised ignores other routes. (TestPlanted of
// doctor tests an address.)
func TestAdvertised(t *testing.T) {
	c := open(t, nil)
	var want []int
	for _, name := range []string{"veth0", "veth1", "veth2", "veth3"} {
		l, _ := veth(t, c, name)
		nettest.Run(t, nil, "ip link set "+name+" up")
		want = append(want, l.Index)
	}
	for _, route := range []string{
		"2001:db8:1::/64 dev veth0 proto ra table 77",
		"2001:db8:2::/64 dev veth0 proto ra",
		"2001:db8:3::/64 proto ra nexthop via fe80::1 dev veth1 nexthop via fe80::2 dev veth2",
		"2001:db8:4::/64 dev veth3 proto static",
	} {
		nettest.Run(t, nil, "ip -6 route add "+route)
	}
	got, err := c.Advertised()
	must(t, err)
	if want = want[:3]; !slices.Equal(got, want) {
		t.Errorf("%v have them, not %v", got, want)
	}
}
