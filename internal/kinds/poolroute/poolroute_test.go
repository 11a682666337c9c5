package poolroute_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/poolroute"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

func newKind(t testing.TB, instance string) (hold.Kind, uint32) {
	t.Helper()
	nettest.Need(t)
	conn, err := rtnl.Open(nil)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	metric, err := stamp.MetricOf(instance)
	must(t, err)
	return poolroute.New(poolroute.Options{Conn: conn, Metric: metric}).Kind(), metric
}

func TestKind(t *testing.T) {
	for _, family := range []struct{ name, format string }{{"IPv4", "10.%d.0.0/16"}, {"IPv6", "fd00:%d::/64"}} {
		t.Run(family.name, func(t *testing.T) {
			k, metric := newKind(t, "test")
			k.Find = nil // a route cannot say who owns it: see TestFind
			var n atomic.Int32
			kindtest.Run(t, kindtest.Kind{
				Kind: k,
				Spec: func(testing.TB, hold.ID) hold.Spec {
					return &poolroute.Spec{CIDR: netip.MustParsePrefix(fmt.Sprintf(family.format, n.Add(1))), Metric: metric}
				},
				Example:  &poolroute.Spec{CIDR: netip.MustParsePrefix("10.88.0.0/16"), Metric: 1<<20 | 77, Local: true},
				Snapshot: func() string { return nettest.Snapshot(t, nil).String() },
				Foreign:  blackhole,
				Lose: func(t testing.TB, h hold.Hold) {
					nettest.Run(t, nil, "ip route del unreachable "+h.Spec.(*poolroute.Spec).CIDR.String())
				},
				Undisguised: "a route is its destination and its metric: one that differs is another route",
			})
		})
	}
}

// The node itself receives packets to an address while the address has a local route, and only then.
func TestLocal(t *testing.T) {
	for _, stand := range []netip.Addr{nft.Stand4, nft.Stand6} {
		t.Run(stand.String(), func(t *testing.T) {
			k, metric := newKind(t, "test")
			h := hold.Hold{Owner: hold.NewID(), Spec: &poolroute.Spec{CIDR: netip.PrefixFrom(stand, stand.BitLen()), Metric: metric, Local: true}}
			unreachable := nettest.Echo(nil, stand, 0)
			for range 2 {
				must(t, k.Acquire(t.Context(), h))
				must(t, k.Verify(t.Context(), nil, []hold.Hold{h})[0])
			}
			if found, err := k.Find(t.Context(), nil); err != nil || len(found) != 1 || *found[0].Spec.(*poolroute.Spec) != *h.Spec.(*poolroute.Spec) {
				t.Errorf("found %v, %v, want %v", found, err, h.Spec)
			}
			nettest.Ping(t, nil, stand)
			for range 2 {
				must(t, k.Release(t.Context(), []hold.Hold{h})[0])
			}
			if err := nettest.Echo(nil, stand, 0); err == nil || unreachable == nil {
				t.Errorf("without the route, %s is reached: before %v, now %v", stand, unreachable, err)
			}
		})
	}
}

// blackhole adds somebody else's route with the same destination and metric.
func blackhole(t testing.TB, h hold.Hold) (intact func() error) {
	s := h.Spec.(*poolroute.Spec)
	_, dst, err := net.ParseCIDR(s.CIDR.String())
	must(t, err)
	route := &netlink.Route{Dst: dst, Priority: int(s.Metric), Type: unix.RTN_BLACKHOLE, Protocol: unix.RTPROT_STATIC}
	must(t, netlink.RouteAdd(route))
	t.Cleanup(func() { netlink.RouteDel(route) })
	return func() error {
		if !strings.Contains(nettest.Snapshot(t, nil).String(), "blackhole") {
			return errors.New("it is gone")
		}
		return nil
	}
}

// Two instances have the same CIDR. Neither finds or releases the other's route.
func TestFind(t *testing.T) {
	a, metricA := newKind(t, "aaaa")
	b, metricB := newKind(t, "bbbb")
	cidr := netip.MustParsePrefix("10.88.0.0/16")
	holdA := hold.Hold{Owner: hold.NewID(), Spec: &poolroute.Spec{CIDR: cidr, Metric: metricA}}
	holdB := hold.Hold{Owner: hold.NewID(), Spec: &poolroute.Spec{CIDR: cidr, Metric: metricB}}
	ctx := context.Background()
	must(t, a.Acquire(ctx, holdA))
	must(t, b.Acquire(ctx, holdB))

	found, err := a.Find(ctx, nil)
	must(t, err)
	if len(found) != 1 || *found[0].Spec.(*poolroute.Spec) != *holdA.Spec.(*poolroute.Spec) {
		t.Errorf("a finds %v, not just %v", found, holdA.Spec)
	}
	if err := a.Release(ctx, []hold.Hold{holdB})[0]; err == nil {
		t.Error("a releases b's route")
	}
	must(t, a.Release(ctx, found)[0])
	must(t, b.Verify(ctx, nil, []hold.Hold{holdB})[0])
	must(t, b.Release(ctx, []hold.Hold{holdB})[0])
}

// The node answers a packet to an address of the pool that no pod has with "host unreachable", and does
// not send the packet out.
func TestUnreachable(t *testing.T) {
	k, metric := newKind(t, "test")
	to := netip.MustParseAddr("10.88.0.7")
	h := hold.Hold{Owner: hold.NewID(), Spec: &poolroute.Spec{CIDR: netip.MustParsePrefix("10.88.0.0/16"), Metric: metric}}
	must(t, k.Acquire(context.Background(), h))
	if err := nettest.Echo(nil, to, 0); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("a packet to %s: %v, not %v", to, err, unix.EHOSTUNREACH)
	}
	must(t, k.Release(context.Background(), []hold.Hold{h})[0])
	if err := nettest.Echo(nil, to, 0); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("a packet to %s without the route: %v, not %v", to, err, unix.ENETUNREACH)
	}
}
