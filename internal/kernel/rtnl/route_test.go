package rtnl_test

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Callers can add a route of every form once, and read it as they added it. Deleting a route, by its
// device, leaves similar routes alone.
func TestRoutes(t *testing.T) {
	c := open(t, nil)
	a, _ := veth(t, c, "veth0")
	b, _ := veth(t, c, "veth1")
	for _, test := range []struct {
		text  string
		route rtnl.Route
		other rtnl.Route // stays
	}{
		{"", rtnl.Route{Dst: prefix("10.88.0.7/32"), Index: a.Index}, rtnl.Route{Dst: prefix("10.88.0.7/32"), Index: b.Index, Metric: 9}},
		{"", rtnl.Route{Dst: prefix("fd88::7/128"), Index: a.Index, Metric: 1024}, rtnl.Route{Dst: prefix("fd88::7/128"), Index: b.Index, Metric: 9}},
		{"", rtnl.Route{Dst: prefix("0.0.0.0/0"), Index: a.Index, Gateway: addr("169.254.1.1")}, rtnl.Route{Dst: prefix("0.0.0.0/0"), Index: b.Index, Gateway: addr("169.254.1.1"), Metric: 9}},
		{"", rtnl.Route{Dst: prefix("::/0"), Index: a.Index, Gateway: addr("fe80::1"), Metric: 1024}, rtnl.Route{Dst: prefix("::/0"), Index: b.Index, Gateway: addr("fe80::1"), Metric: 9}},
		{"unreachable 10.88.0.0/16 metric 77 proto 98", rtnl.Route{Dst: prefix("10.88.0.0/16"), Unreachable: true, Metric: 77}, rtnl.Route{Dst: prefix("10.88.0.0/16"), Unreachable: true, Metric: 78}},
		{"unreachable fd88::/64 metric 77 proto 98", rtnl.Route{Dst: prefix("fd88::/64"), Unreachable: true, Metric: 77}, rtnl.Route{Dst: prefix("fd88::/64"), Unreachable: true, Metric: 78}},
	} {
		t.Run(test.route.String(), func(t *testing.T) {
			if test.text != "" && test.route.String() != test.text {
				t.Errorf("it reads %q, not %q", test.route, test.text)
			}
			must(t, c.Do(rtnl.AddRoute(test.route), rtnl.AddRoute(test.other)))
			if err := c.Do(rtnl.AddRoute(test.route)); !errors.Is(err, kernel.ErrExists) {
				t.Errorf("added again: %v", err)
			}
			list := func(want ...rtnl.Route) {
				t.Helper()
				got, err := c.Routes(rtnl.RouteFilter{Unreachable: test.route.Unreachable})
				must(t, err)
				if len(got) != len(want) || !slices.Contains(got, want[0]) || !slices.Contains(got, want[len(want)-1]) {
					t.Errorf("routes %v, not %v", got, want)
				}
			}
			list(test.route, test.other)
			if got, err := c.Routes(rtnl.RouteFilter{Unreachable: !test.route.Unreachable}); err != nil || len(got) > 0 {
				t.Errorf("of the other type are %v, %v", got, err)
			}
			if i := test.route.Index; i != 0 {
				if got, err := c.Routes(rtnl.RouteFilter{Index: i}); err != nil || len(got) != 1 || got[0] != test.route {
					t.Errorf("on the link are %v, %v", got, err)
				}
			}
			must(t, c.Do(rtnl.DelRoute(test.route)))
			list(test.other)
			if err := c.Do(rtnl.DelRoute(test.route)); !errors.Is(err, kernel.ErrNotFound) {
				t.Errorf("deleted again: %v", err)
			}
			must(t, c.Do(rtnl.DelRoute(test.other)))
		})
	}
}

// DelRoute deletes a route only if all that it names is the route's: metric, gateway and link. What it does not name may be anything.
func TestDelRouteMatches(t *testing.T) {
	c := open(t, nil)
	a, _ := veth(t, c, "veth0")
	b, _ := veth(t, c, "veth1")
	for _, test := range []struct{ dst, gateway, other string }{{"10.88.0.0/24", "192.0.2.11", "192.0.2.12"}, {"fd88::/64", "fe80::11", "fe80::12"}} {
		is := rtnl.Route{Dst: prefix(test.dst), Index: a.Index, Gateway: addr(test.gateway), Metric: 77}
		must(t, c.Do(rtnl.AddRoute(is)))
		for what, change := range map[string]func(*rtnl.Route){
			"metric":  func(r *rtnl.Route) { r.Metric++ },
			"gateway": func(r *rtnl.Route) { r.Gateway = addr(test.other) },
			"link":    func(r *rtnl.Route) { r.Index = b.Index },
		} {
			other := is
			if change(&other); !errors.Is(c.Do(rtnl.DelRoute(other)), kernel.ErrNotFound) {
				t.Errorf("%s: deleted, though the %s differs", is, what)
				must(t, c.Do(rtnl.AddRoute(is)))
			}
		}
		is.Index = 0 // any: what has the gateway on another link is deleted, too
		must(t, c.Do(rtnl.DelRoute(is)))
	}
}

// DelRoutes answers for each route: those that are not there are no error, and a request that the kernel refuses keeps no other.
func TestDelRoutes(t *testing.T) {
	c := open(t, nil)
	there := rtnl.Route{Dst: prefix("10.88.0.0/16"), Unreachable: true, Metric: 77}
	must(t, c.Do(rtnl.AddRoute(there)))
	errs := c.DelRoutes([]rtnl.Route{{}, {Dst: prefix("10.89.0.0/16"), Metric: 77}, {Dst: prefix("fd88::/64"), Gateway: addr("192.0.2.1")}, there})
	for i, err := range errs {
		if refused := i == 2; (err != nil) != refused {
			t.Errorf("of the %d. route: %v", i+1, err)
		}
	}
	if left, err := c.Routes(rtnl.RouteFilter{Unreachable: true}); err != nil || len(errs) != 4 || len(left) > 0 {
		t.Errorf("%d answers; left are %v, %v", len(errs), left, err)
	}
}

// Routes, MatchRoute and DelRoute see Berth's routes only.
func TestOthersRoutes(t *testing.T) {
	c := open(t, nil)
	l, _ := veth(t, c, "veth0")
	for _, dst := range []string{"10.88.0.7/32", "fd88::7/128"} {
		_, ipnet, err := net.ParseCIDR(dst)
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{Dst: ipnet, LinkIndex: l.Index, Protocol: 4}))
		r := rtnl.Route{Dst: prefix(dst), Index: l.Index}
		if err := c.Do(rtnl.DelRoute(r)); !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("deleting another's route: %v", err)
		}
		var got rtnl.Route
		if err := c.Do(rtnl.MatchRoute(r.Dst.Addr(), &got)); err != nil || got != (rtnl.Route{}) {
			t.Errorf("another's route matches as %v, %v", got, err)
		}
	}
	if routes, err := c.Routes(rtnl.RouteFilter{}); err != nil || len(routes) > 0 {
		t.Errorf("listed are %v, %v", routes, err)
	}
}

func TestMatchRoute(t *testing.T) {
	c := open(t, nil)
	l, _ := veth(t, c, "veth0")
	for _, test := range []struct{ pool, host string }{{"10.88.0.0/16", "10.88.0.7/32"}, {"fd88::/64", "fd88::7/128"}} {
		pool := rtnl.Route{Dst: prefix(test.pool), Unreachable: true, Metric: 77}
		want := rtnl.Route{Dst: prefix(test.host), Index: l.Index, Metric: 5}
		var got rtnl.Route
		match := rtnl.MatchRoute(want.Dst.Addr(), &got)
		for range 2 { // without any route, then with an unreachable route
			if err := c.Do(match); !errors.Is(err, kernel.ErrUnreachable) || got != (rtnl.Route{}) {
				t.Errorf("%s: %v, %v", want.Dst, got, err)
			}
			c.Do(rtnl.AddRoute(pool))
		}
		must(t, c.Do(rtnl.AddRoute(want), match))
		if got != want {
			t.Errorf("%v matches, not %v", got, want)
		}
		must(t, c.Do(rtnl.DelRoute(pool)))
	}
}

func TestAddresses(t *testing.T) {
	c := open(t, nil)
	l, _ := veth(t, c, "veth0")
	for _, p := range []string{"10.88.0.7/32", "fd88::7/128"} {
		a := rtnl.Address{Prefix: prefix(p), Index: l.Index}
		must(t, c.Do(rtnl.AddAddress(a)))
		if err := c.Do(rtnl.AddAddress(a)); !errors.Is(err, kernel.ErrExists) {
			t.Errorf("added again: %v", err)
		}
		got, err := c.Addresses(l.Index)
		must(t, err)
		if !slices.Contains(got, a) {
			t.Errorf("the link has %v, not %v", got, a)
		}
		lo, err := c.Addresses(1)
		must(t, err)
		if slices.Contains(lo, rtnl.Address{Prefix: a.Prefix, Index: 1}) || len(lo) == 0 {
			t.Errorf("lo has %v", lo)
		}
	}
}

func TestIsLocal(t *testing.T) {
	c := open(t, nil)
	for a, want := range map[string]bool{"127.0.0.1": true, "::1": true, "10.88.0.7": false} {
		got := !want
		err := c.Do(rtnl.IsLocal(addr(a), &got))
		if want && (err != nil || !got) || !want && err == nil {
			t.Errorf("%s is local: %t, %v", a, got, err)
		}
	}
}

func TestNeighbours(t *testing.T) {
	c := open(t, nil)
	l, _ := veth(t, c, "veth0")
	for _, a := range []string{"10.88.0.7", "fd88::7"} {
		for _, mac := range []string{"02:00:00:00:00:01", "02:00:00:00:00:02"} { // the second MAC replaces the first
			hw, err := net.ParseMAC(mac)
			must(t, err)
			want := rtnl.Neighbour{Addr: addr(a), MAC: mac, Index: l.Index}
			var got rtnl.Neighbour
			must(t, c.Do(rtnl.SetNeighbour(addr(a), hw, l.Index), rtnl.GetNeighbour(addr(a), l.Index, &got)))
			if got != want {
				t.Errorf("the neighbour is %v, not %v", got, want)
			}
			all, err := c.Neighbours()
			must(t, err)
			if !slices.Contains(all, want) {
				t.Errorf("neighbours are %v, without %v", all, want)
			}
		}
	}
	// GetNeighbour does not return a neighbour that is not permanent.
	must(t, netlink.NeighSet(&netlink.Neigh{
		LinkIndex: l.Index, State: netlink.NUD_STALE, IP: net.ParseIP("10.88.0.8"), HardwareAddr: []byte{2, 0, 0, 0, 0, 1},
	}))
	var got rtnl.Neighbour
	if err := c.Do(rtnl.GetNeighbour(addr("10.88.0.8"), l.Index, &got)); err != nil || got != (rtnl.Neighbour{}) {
		t.Errorf("a stale neighbour is %v, %v", got, err)
	}
	all, err := c.Neighbours()
	must(t, err)
	if slices.ContainsFunc(all, func(n rtnl.Neighbour) bool { return n.Addr == addr("10.88.0.8") }) {
		t.Errorf("a stale neighbour is listed: %v", all)
	}
}
