package rtnl_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// ErrStop ends a list. The Conn still works after that, unless Here made it: such a Conn knows no
// namespace in which to open a new socket.
func TestEachStops(t *testing.T) {
	c := open(t, nil)
	_, pod := veth(t, c, "veth0")
	at := open(t, pod)
	eth0, err := at.Link("eth0")
	must(t, err)
	const n = 3000
	var rs []rtnl.Request
	for i := range n {
		rs = append(rs, rtnl.AddRoute(rtnl.Route{Dst: prefix(fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255)), Index: eth0.Index}))
	}
	must(t, at.Do(append(rs, rtnl.AddAddress(rtnl.Address{Prefix: prefix("10.88.0.7/32"), Index: eth0.Index}))...))
	full := errors.New("full")
	for want, end := range map[int]error{n: nil, 5: rtnl.ErrStop, 6: full} {
		seen := 0
		err := at.EachRoute(rtnl.RouteFilter{Index: eth0.Index}, func(rtnl.Route) error {
			if seen++; seen == want {
				return end
			}
			return nil
		})
		if seen != want || end != full && err != nil || end == full && !errors.Is(err, full) {
			t.Errorf("%d routes, %v; not %d, then %v", seen, err, want, end)
		}
	}
	var one rtnl.Route
	must(t, at.Do(rtnl.MatchRouteBy(addr("10.3.4.5"), eth0.Index, &one)))
	if one.Dst != prefix("10.3.4.0/24") {
		t.Errorf("%v matches", one)
	}

	var here *rtnl.Conn
	must(t, pod.Do(func() (err error) { here, err = rtnl.Here(); return err }))
	defer here.Close()
	must(t, here.EachAddress(eth0.Index, false, func(rtnl.Address) error { return rtnl.ErrStop }))
	if _, err := here.Link("lo"); !errors.Is(err, os.ErrClosed) { // otherwise Link would return the node's lo
		t.Errorf("a connection that lost its socket goes on elsewhere: %v", err)
	}
}

func TestGetAddress6(t *testing.T) {
	c := open(t, nil)
	l, _ := veth(t, c, "veth0")
	want := rtnl.Address{Prefix: prefix("fd88::7/128"), Index: l.Index}
	var got rtnl.Address
	ask := rtnl.GetAddress6(want.Prefix.Addr(), l.Index, &got)
	if err := c.Do(ask); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("an address that is not there: %v", err)
	}
	must(t, c.Do(rtnl.AddAddress(want), ask))
	if got != want {
		t.Errorf("the address is %v, not %v", got, want)
	}
}
