package rtnl_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// policedTo reads the rate to which the police of a link holds what comes in.
func policedTo(t testing.TB, c *rtnl.Conn, index int) rtnl.Rate {
	t.Helper()
	rates, err := c.Policed(index)
	must(t, err)
	return rates[index]
}

// Policed reads exactly the rate that Police was given, and Police leaves others' filters alone.
func TestPolice(t *testing.T) {
	nettest.NeedPrograms(t)
	c := open(t, nil)
	link, _ := veth(t, c, "policed")
	if r := policedTo(t, c, link.Index); r != (rtnl.Rate{}) {
		t.Errorf("a new link has %s", r)
	}
	nettest.Run(t, nil, "tc qdisc add dev policed clsact") // others' filters may be there before
	nettest.Run(t, nil, "tc filter add dev policed ingress pref 7 protocol ip u32 match u32 0 0 action mirred egress mirror dev lo")
	if r := policedTo(t, c, link.Index); r != (rtnl.Rate{}) {
		t.Errorf("a link without police has %s", r)
	}
	for _, r := range []rtnl.Rate{
		{Rate: 1, Burst: 1514}, {Rate: 1, Burst: math.MaxUint32}, {Rate: 1_250_000, Burst: 100_000},
		{Rate: math.MaxUint32 + 1, Burst: 1 << 20}, {Rate: math.MaxInt64 / 8, Burst: 1514},
	} {
		must(t, c.Police(link.Index, r, 1500, false))
		if got := policedTo(t, c, link.Index); got != r {
			t.Errorf("%s became %s", r, got)
		}
	}
	all, err := c.Policed(1, link.Index, 1<<30)
	must(t, err)
	if want := (rtnl.Rate{Rate: math.MaxInt64 / 8, Burst: 1514}); len(all) != 1 || all[link.Index] != want {
		t.Errorf("of three links, these have police: %v", all)
	}
	nettest.Run(t, nil, "tc filter get dev policed ingress pref 7 protocol ip handle 800::800 u32") // the other filter is still there
	nettest.Run(t, nil, "tc filter del dev policed ingress pref 98")
	if r := policedTo(t, c, link.Index); r != (rtnl.Rate{}) {
		t.Errorf("what is taken away is %s", r)
	}
	if err := c.Police(1<<30, rtnl.Rate{Rate: 1000, Burst: 1514}, 1500, false); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("a link that is not there: %v", err)
	}
}

// A monitor tells of changes to filters that Police has made, and of no other filter.
func TestMonitorPolice(t *testing.T) {
	nettest.NeedPrograms(t)
	c := open(t, nil)
	_, told := listen(t, c)
	link, _ := veth(t, c, "gate")
	foreign, _ := veth(t, c, "strange")
	r := rtnl.Rate{Rate: 1000, Burst: 1514}
	nettest.Run(t, nil, "tc qdisc add dev strange clsact")
	again := func() { must(t, c.Police(link.Index, r, 1500, false)) }
	var seen []string
	for _, step := range []struct{ command, want string }{
		{"", r.String()},
		{"filter del dev gate ingress pref 98 handle 0xbe98 bpf", "no rate"},
		{"", r.String()},
		{"filter del dev gate ingress pref 98", "no rate"},
		{"", r.String()},
		{"filter del dev gate ingress", "no rate"},
		{"", r.String()},
		{"qdisc del dev gate clsact", "no rate"},
	} {
		nettest.Run(t, nil, "tc filter replace dev strange ingress pref 9 protocol ip u32 match u32 0 0 action mirred egress mirror dev lo")
		seen = nil
		if step.command == "" {
			again()
		} else {
			nettest.Run(t, nil, "tc "+step.command)
		}
		nettest.Run(t, nil, "tc filter del dev strange ingress pref 9")
		want := fmt.Sprintf("police %d %s", link.Index, step.want)
		nettest.Eventually(t, want, func() bool {
			seen = append(seen, told()...)
			return slices.Contains(seen, want)
		})
		if other := fmt.Sprintf("police %d no rate", foreign.Index); slices.Contains(seen, other) {
			t.Errorf("told, although it is nobody's business: %s", other)
		}
	}
}
