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

// GetQdisc reads exactly the rate that Shape was given: the least rate, the greatest, and rates that
// kubelets ask for.
func TestShape(t *testing.T) {
	c := open(t, nil)
	link, _ := veth(t, c, "shaped")
	read := func() (q rtnl.Qdisc) {
		t.Helper()
		must(t, c.GetQdisc(link.Index, &q))
		return q
	}
	if q := read(); q.Kind == "tbf" || q.Shape != (rtnl.Rate{}) {
		t.Errorf("a new link has %+v", q)
	}
	for _, up := range []bool{false, true} {
		for _, r := range []rtnl.Rate{
			{Rate: 1, Burst: 1514}, {Rate: 1, Burst: math.MaxUint32}, {Rate: 125, Burst: 1514}, {Rate: 125_000, Burst: math.MaxInt32 / 8},
			{Rate: 1_250_000, Burst: 100_000}, {Rate: 1_250_000_000, Burst: 1514}, {Rate: 12_500_000, Burst: math.MaxUint32},
			{Rate: math.MaxUint32 - 1, Burst: 65536}, {Rate: math.MaxUint32, Burst: 65536}, {Rate: math.MaxUint32 + 1, Burst: 1 << 20},
			{Rate: 125e12, Burst: 1 << 28}, {Rate: math.MaxInt64 / 8, Burst: 1514},
		} {
			must(t, c.Do(rtnl.Shape(link.Index, r)))
			if q := read(); q.Shape != r || q.Kind != "tbf" || q.Index != link.Index || q.InWay {
				t.Errorf("up %t: %s became %+v", up, r, q)
			}
			all, err := c.Shaped()
			must(t, err)
			if !slices.Contains(all, read()) {
				t.Errorf("%s is not among %v", r, all)
			}
		}
		must(t, c.Do(rtnl.Unshape(link.Index)))
		if q := read(); q.Kind == "tbf" || q.Shape != (rtnl.Rate{}) {
			t.Errorf("what is taken away is %+v", q)
		}
		must(t, c.Do(rtnl.SetLink(link.Name, rtnl.Up())))
	}
	if err := c.Do(rtnl.Shape(1<<30, rtnl.Rate{Rate: 1000, Burst: 1514})); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("a link that is not there: %v", err)
	}
}

// A discipline that others have put under Shape's handle has to go before Shape works.
func TestShapeInTheWay(t *testing.T) {
	c := open(t, nil)
	link, _ := veth(t, c, "inway")
	nettest.Run(t, nil, "tc qdisc add dev inway root handle be98: pfifo limit 9")
	var q rtnl.Qdisc
	must(t, c.GetQdisc(link.Index, &q))
	if !q.InWay || q.Kind != "pfifo" {
		t.Errorf("%+v", q)
	}
	r := rtnl.Rate{Rate: 1000, Burst: 1514}
	if err := c.Do(rtnl.Shape(link.Index, r)); err == nil {
		t.Error("Shape replaces a discipline of another kind and the same handle: InWay is not needed")
	}
	must(t, c.Do(rtnl.Unshape(link.Index), rtnl.Shape(link.Index, r)))
}

// A monitor tells of changes to disciplines that Shape has made, and of no other queueing discipline.
func TestMonitorShapes(t *testing.T) {
	c := open(t, nil)
	_, told := listen(t, c)
	link, _ := veth(t, c, "queues")
	foreign, _ := veth(t, c, "foreign")
	r := rtnl.Rate{Rate: 1000, Burst: 1514}
	must(t, c.Do(rtnl.Shape(link.Index, r), rtnl.SetLink("queues", rtnl.Up()), rtnl.SetLink("foreign", rtnl.Up())))
	var seen []string
	for _, step := range []struct{ command, want string }{
		{"change dev queues root handle be98: tbf rate 1mbit burst 2000 limit 2000", "no rate"},
		{"", r.String()},
		{"del dev queues root", "no rate"},
		{"add dev queues root handle be98: pfifo", ""}, // the kernel first says that the default is gone
		{"replace dev queues root handle 1: pfifo", "no rate"},
	} {
		nettest.Run(t, nil, "tc qdisc replace dev foreign root handle 1: pfifo")
		if step.command != "" {
			nettest.Run(t, nil, "tc qdisc "+step.command)
		} else {
			must(t, c.Do(rtnl.Shape(link.Index, r)))
		}
		nettest.Run(t, nil, "tc qdisc del dev foreign root")
		if step.want == "" {
			continue
		}
		seen = nil
		want := fmt.Sprintf("shape %d %s", link.Index, step.want)
		nettest.Eventually(t, want, func() bool {
			seen = append(seen, told()...)
			return slices.Contains(seen, want)
		})
		for _, n := range seen {
			if n == fmt.Sprintf("shape %d no rate", foreign.Index) {
				t.Errorf("told, although it is nobody's business: %s", n)
			}
		}
	}
}
