package overlap_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/overlap"
)

// node lists what uses addresses on a node. The node's links are 1 eth0, 2 a host veth of the agent's
// own, 3 podman0, 4 a host veth of an agent that runs, and 5 a host veth of an agent that does not run.
type node []rtnl.Use

func (n node) Uses() ([]rtnl.Use, error) { return n, nil }

func (n node) Names(indices ...int) (names []string, _ error) {
	for _, i := range indices {
		names = append(names, []string{"", "eth0", "babcdefghij2345", "podman0", "brunsefghij2345", "bgoneefghij2345"}[i])
	}
	return names, nil
}

func TestFind(t *testing.T) {
	address := func(p string, index int) rtnl.Use {
		return rtnl.Use{Sort: rtnl.UseAddress, Prefix: netip.MustParsePrefix(p), Index: index}
	}
	route := func(p, via string, index int, table uint32) rtnl.Use {
		u := rtnl.Use{Sort: rtnl.UseRoute, Prefix: netip.MustParsePrefix(p), Index: index, Table: table}
		if via != "" {
			u.Via = netip.MustParseAddr(via)
		}
		return u
	}
	gateway := func(a string, index int) rtnl.Use {
		addr := netip.MustParseAddr(a)
		return rtnl.Use{Sort: rtnl.UseGateway, Prefix: netip.PrefixFrom(addr, addr.BitLen()), Index: index, Table: 254}
	}
	pool := func(p, agent string) rtnl.Use {
		return rtnl.Use{Sort: rtnl.UseRoute, Prefix: netip.MustParsePrefix(p), Table: 254, Agent: agent}
	}
	agents := overlap.Agents{Self: "abcd567abc", Running: func(instance string) (string, bool) {
		return "process 7, --root /b", instance == "runs"
	}}
	for name, tt := range map[string]struct {
		uses []rtnl.Use
		want []string
	}{
		"nobody":                          {nil, nil},
		"neighbours":                      {[]rtnl.Use{address("10.87.255.254/16", 1), address("10.89.0.1/16", 1), route("10.89.0.0/16", "", 1, 254), gateway("10.89.0.2", 1)}, nil},
		"an address in it":                {[]rtnl.Use{address("10.88.5.1/32", 1)}, []string{"the address 10.88.5.1/32 of eth0"}},
		"a network in it":                 {[]rtnl.Use{address("10.88.5.1/24", 3), route("10.88.5.0/24", "", 3, 254)}, []string{"the address 10.88.5.1/24 of podman0"}},
		"it is the network":               {[]rtnl.Use{address("10.88.0.1/16", 3), route("10.88.0.0/16", "", 3, 254)}, []string{"the address 10.88.0.1/16 of podman0"}},
		"it is in a network":              {[]rtnl.Use{address("10.0.0.5/8", 1)}, []string{"the address 10.0.0.5/8 of eth0"}},
		"a route into it":                 {[]rtnl.Use{route("10.88.5.0/24", "192.0.2.1", 1, 254)}, []string{"the route 10.88.5.0/24 via 192.0.2.1 dev eth0"}},
		"a route to it, of another table": {[]rtnl.Use{route("10.88.0.0/16", "", 0, 52)}, []string{"the route 10.88.0.0/16 table 52"}},
		"a route beyond it":               {[]rtnl.Use{route("10.0.0.0/8", "192.0.2.1", 1, 254)}, []string{"within the route 10.0.0.0/8 via 192.0.2.1 dev eth0"}},
		"the gateway":                     {[]rtnl.Use{gateway("10.88.0.1", 1)}, []string{"the gateway 10.88.0.1 dev eth0"}},
		"Berth's link":                    {[]rtnl.Use{address("10.88.0.1/32", 2), route("10.88.0.7/32", "", 2, 254)}, nil},
		"its own route":                   {[]rtnl.Use{pool("10.88.0.0/16", "abcd")}, nil},
		"another agent's pool":            {[]rtnl.Use{pool("10.88.0.0/16", "runs")}, []string{"the pool's route 10.88.0.0/16 of another agent (process 7, --root /b)"}},
		"another agent's greater pool":    {[]rtnl.Use{pool("10.0.0.0/8", "runs")}, []string{"the pool's route 10.0.0.0/8 of another agent (process 7, --root /b)"}},
		"another agent's other pool":      {[]rtnl.Use{pool("10.89.0.0/16", "runs")}, nil},
		"what an agent has left":          {[]rtnl.Use{pool("10.88.0.0/16", "gone")}, []string{"left the pool's route 10.88.0.0/16 of another agent, which does not run (instance gone...)"}},
		"another agent's link":            {[]rtnl.Use{route("10.88.0.7/32", "", 4, 254)}, []string{"the route 10.88.0.7/32 dev brunsefghij2345 of another agent (process 7, --root /b)"}},
		"a link that an agent has left":   {[]rtnl.Use{route("10.88.0.7/32", "", 5, 254)}, []string{"left the route 10.88.0.7/32 dev bgoneefghij2345 of another agent, which does not run (instance gone...)"}},
		"IPv6":                            {[]rtnl.Use{address("fd00:88::1/64", 1)}, []string{"the address fd00:88::1/64 of eth0"}},
	} {
		pools := []ipam.PoolConfig{
			{Name: "a", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("fd00:88::/64")}},
			{Name: "b", CIDRs: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}},
		}
		found, err := overlap.Find(pools, node(tt.uses), agents)
		nettest.Must(t, err)
		var got []string
		for _, o := range found {
			with := o.With
			if o.Within {
				with = "within " + with
			}
			if o.Left {
				with = "left " + with
			}
			if o.Left != (o.Remedy != "") {
				t.Errorf("%s: left %t, remedy %q", name, o.Left, o.Remedy)
			}
			got = append(got, with)
			if want := fmt.Sprintf("pool a: %s overlaps %s", o.CIDR, o.With); o.String() != want {
				t.Errorf("%s: %q, want %q", name, o, want)
			}
		}
		refused := slices.ContainsFunc(found, func(o overlap.Overlap) bool { return !o.Within && !o.Left })
		if err := overlap.Check(pools, node(tt.uses), agents); (err != nil) != refused || refused && !strings.Contains(err.Error(), tt.want[0]) {
			t.Errorf("%s: refused %v, want %t", name, err, refused)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The node may be on a pool's segment, and have routes to it. Nobody else may have the pool's addresses.
func TestFindOnSegment(t *testing.T) {
	lan := ipam.PoolConfig{
		Name: "lan", CIDRs: []netip.Prefix{netip.MustParsePrefix("192.168.1.64/26")},
		Segment: &ipam.Segment{Subnets: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")}},
	}
	agents := overlap.Agents{Self: "abcd567abc", Running: func(string) (string, bool) { return "process 7", true }}
	use := func(sort rtnl.UseSort, p, agent string) rtnl.Use {
		return rtnl.Use{Sort: sort, Prefix: netip.MustParsePrefix(p), Index: 1, Table: 254, Agent: agent}
	}
	for what, tt := range map[string]struct {
		use     rtnl.Use
		refused bool
	}{
		"the node's address":      {use(rtnl.UseAddress, "192.168.1.3/24", ""), false},
		"the segment":             {use(rtnl.UseRoute, "192.168.1.0/24", ""), false},
		"the pool's own prefix":   {use(rtnl.UseRoute, "192.168.1.64/26", ""), false},
		"the gateway":             {use(rtnl.UseGateway, "192.168.1.1/32", ""), false},
		"an address in the pool":  {use(rtnl.UseAddress, "192.168.1.70/24", ""), true},
		"a gateway in the pool":   {use(rtnl.UseGateway, "192.168.1.70/32", ""), true},
		"a route into the pool":   {use(rtnl.UseRoute, "192.168.1.64/28", ""), true},
		"another agent's pool":    {use(rtnl.UseRoute, "192.168.1.0/24", "runs"), true},
		"another agent's in part": {use(rtnl.UseRoute, "192.168.1.64/28", "runs"), true},
	} {
		if err := overlap.Check([]ipam.PoolConfig{lan}, node{tt.use}, agents); (err != nil) != tt.refused {
			t.Errorf("%s: %v", what, err)
		}
	}
}
