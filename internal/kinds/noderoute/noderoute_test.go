package noderoute_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// tunnel is the name of the tunnel's device.
const tunnel = "berth-test"

// segment gives the node a link to a segment of the LAN, on which other nodes are.
func segment(t testing.TB) {
	for _, c := range []string{
		"ip link add uplink type veth peer name far",
		"ip link set uplink addrgenmode none", "ip link set far addrgenmode none", // whose routes the kernel would make later
		"ip addr add 192.0.2.1/24 dev uplink", "ip addr add 2001:db8::1/64 dev uplink nodad",
		"ip link set far up", "ip link set uplink up",
		"ip link add " + tunnel + " type vxlan id 98 dstport 4789 local 192.0.2.1", "ip link set " + tunnel + " addrgenmode none", "ip link set " + tunnel + " up",
	} {
		nettest.Run(t, nil, c)
	}
}

var once sync.Once

func newKind(t testing.TB, instance string) (hold.Kind, uint32) {
	t.Helper()
	return kindWith(t, instance, tunnel)
}

// kindWith returns the kind of an instance whose tunnel's device has a name.
func kindWith(t testing.TB, instance, device string) (hold.Kind, uint32) {
	t.Helper()
	nettest.Need(t)
	nettest.Program(t, "ip") // a skip within Once would leave later tests without the segment
	once.Do(func() { segment(t) })
	conn, err := rtnl.Open(nil)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	metric, err := stamp.MetricOf(instance)
	must(t, err)
	return noderoute.New(noderoute.Options{Conn: conn, Metric: metric, Tunnel: device}).Kind(), metric
}

func TestKind(t *testing.T) {
	for _, family := range []struct {
		name, cidr, via, device string
		tunnel, closed          bool
	}{
		{"IPv4", "10.244.%d.0/24", "192.0.2.11", tunnel, false, false}, {"IPv6", "fd00:244:%d::/64", "2001:db8::11", tunnel, false, false},
		{"IPv4 without a tunnel", "10.244.%d.0/24", "192.0.2.11", "berth-none", false, false},
		{"IPv6 without a tunnel", "fd00:244:%d::/64", "2001:db8::11", "berth-none", false, false},
		{"IPv4 by tunnel", "10.244.%d.0/24", "192.0.2.11", tunnel, true, false}, {"IPv6 by tunnel", "fd00:244:%d::/64", "fe80::11", tunnel, true, false},
		{"IPv4 closed", "10.244.%d.0/24", "", tunnel, false, true}, {"IPv6 closed", "fd00:244:%d::/64", "", tunnel, false, true},
	} {
		t.Run(family.name, func(t *testing.T) {
			k, metric := kindWith(t, "test", family.device)
			k.Find = nil // a route cannot say who owns it: see TestFind
			var n atomic.Int32
			kindtest.Run(t, kindtest.Kind{
				Kind: k,
				Spec: func(testing.TB, hold.ID) hold.Spec {
					cidr := fmt.Sprintf(family.cidr, n.Add(1))
					if family.closed {
						return &noderoute.Spec{CIDR: netip.MustParsePrefix(cidr), Metric: stamp.Beneath(metric), Closed: true}
					}
					s := route(cidr, family.via, metric)
					s.Tunnel = family.tunnel
					return s
				},
				Example:     &noderoute.Spec{CIDR: netip.MustParsePrefix("10.244.1.0/24"), Via: netip.MustParseAddr("192.0.2.11"), Metric: 1<<20 | 77, Tunnel: true, Closed: true},
				Snapshot:    func() string { return nettest.Snapshot(t, nil).String() },
				Foreign:     blackhole,
				Undisguised: "a route is its destination, its metric and its gateway: one that differs is another route",
			})
		})
	}
}

func route(cidr, via string, metric uint32) *noderoute.Spec {
	return &noderoute.Spec{CIDR: netip.MustParsePrefix(cidr), Via: netip.MustParseAddr(via), Metric: metric}
}

// blackhole adds somebody else's route with the same destination and metric.
func blackhole(t testing.TB, h hold.Hold) (intact func() error) {
	s := h.Spec.(*noderoute.Spec)
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

// Two instances have a route to the same CIDR. Neither finds or releases the other's route.
func TestFind(t *testing.T) {
	a, metricA := newKind(t, "aaaa")
	b, metricB := newKind(t, "bbbb")
	holdA := hold.Hold{Owner: hold.NewID(), Spec: route("10.244.1.0/24", "192.0.2.11", metricA)}
	holdB := hold.Hold{Owner: hold.NewID(), Spec: route("10.244.1.0/24", "192.0.2.11", metricB)}
	must(t, a.Acquire(t.Context(), holdA))
	must(t, b.Acquire(t.Context(), holdB))
	found, err := a.Find(t.Context(), nil)
	must(t, err)
	if len(found) != 1 || *found[0].Spec.(*noderoute.Spec) != *holdA.Spec.(*noderoute.Spec) {
		t.Errorf("a finds %v, not just %v", found, holdA.Spec)
	}
	if err := a.Release(t.Context(), []hold.Hold{holdB})[0]; err == nil {
		t.Error("a releases b's route")
	}
	must(t, a.Release(t.Context(), found)[0])
	must(t, b.Verify(t.Context(), nil, []hold.Hold{holdB})[0])
	must(t, b.Release(t.Context(), []hold.Hold{holdB})[0])
}

// A node comes to have another address: the new hold's route replaces that of the former hold, whose release
// leaves the new route alone, also where somebody's narrower route hides both from who looks them up.
func TestReplace(t *testing.T) {
	for _, family := range []struct {
		name, cidr, was, is     string
		wasByTunnel, isByTunnel bool
	}{
		{"IPv4", "10.244.1.0/24", "192.0.2.11", "192.0.2.12", false, false},
		{"IPv6", "fd00:244:1::/64", "2001:db8::11", "2001:db8::12", false, false},
		{"IPv4 into the tunnel", "10.244.1.0/24", "192.0.2.11", "192.0.2.11", false, true},
		{"IPv6 into the tunnel", "fd00:244:1::/64", "2001:db8::11", "fe80::11", false, true},
		{"IPv4 out of the tunnel", "10.244.1.0/24", "192.0.2.11", "192.0.2.11", true, false},
		{"IPv6 out of the tunnel", "fd00:244:1::/64", "fe80::11", "2001:db8::11", true, false},
	} {
		for _, narrower := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, hidden %t", family.name, narrower), func(t *testing.T) {
				k, metric := newKind(t, "test")
				before, after := route(family.cidr, family.was, metric), route(family.cidr, family.is, metric)
				before.Tunnel, after.Tunnel = family.wasByTunnel, family.isByTunnel
				if narrower {
					half := netip.PrefixFrom(before.CIDR.Addr(), before.CIDR.Bits()+1).String()
					nettest.Run(t, nil, "ip route add "+half+" dev uplink")
					defer nettest.Run(t, nil, "ip route del "+half+" dev uplink")
				}
				was := hold.Hold{Owner: hold.NewID(), Spec: before}
				is := hold.Hold{Owner: was.Owner, Spec: after}
				must(t, k.Acquire(t.Context(), was))
				must(t, k.Acquire(t.Context(), is))
				must(t, k.Release(t.Context(), []hold.Hold{was})[0])
				must(t, k.Verify(t.Context(), nil, []hold.Hold{is})[0])
				if err := k.Verify(t.Context(), nil, []hold.Hold{was})[0]; !errors.Is(err, hold.ErrGone) {
					t.Errorf("the former route: %v", err)
				}
				must(t, k.Release(t.Context(), []hold.Hold{is})[0])
				if err := k.Verify(t.Context(), nil, []hold.Hold{is})[0]; !errors.Is(err, hold.ErrGone) {
					t.Errorf("the released route: %v", err)
				}
			})
		}
	}
}

// With thousands of nodes, a route is replaced and deleted in a small part of the time that a look at all routes takes.
func TestOneOfThousands(t *testing.T) {
	k, metric := newKind(t, "test")
	conn, err := rtnl.Open(nil)
	must(t, err)
	defer conn.Close()
	var add, del []rtnl.Request
	for i := range 5000 {
		r := rtnl.Route{Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), Gateway: netip.MustParseAddr("192.0.2.11"), Metric: metric}
		add, del = append(add, rtnl.AddRoute(r)), append(del, rtnl.DelRoute(r))
	}
	must(t, conn.Do(add...))
	defer func() { must(t, conn.Do(del...)) }()
	quickest := func(f func() error) (least time.Duration) {
		for i := range 5 {
			began := time.Now()
			must(t, f())
			if took := time.Since(began); i == 0 || took < least {
				least = took
			}
		}
		return least
	}
	was := hold.Hold{Owner: hold.NewID(), Spec: route("10.244.1.0/24", "192.0.2.11", metric)}
	is := hold.Hold{Owner: was.Owner, Spec: route("10.244.1.0/24", "192.0.2.12", metric)}
	walk := quickest(func() error { _, err := conn.Routes(rtnl.RouteFilter{}); return err })
	one := quickest(func() error {
		return errors.Join(k.Acquire(t.Context(), was), k.Acquire(t.Context(), is), k.Release(t.Context(), []hold.Hold{was})[0], k.Release(t.Context(), []hold.Hold{is})[0])
	})
	if t.Logf("a walk takes %s, a route's whole life %s", walk, one); one > walk/2 {
		t.Errorf("a route's whole life takes %s, and a walk of 5,000 routes %s", one, walk)
	}
}

// While another node's way is away, packets go nowhere: the route beneath stays when the way goes with its link.
func TestClosed(t *testing.T) {
	k, metric := newKind(t, "test")
	way := hold.Hold{Owner: hold.NewID(), Spec: route("10.244.8.0/24", "192.0.2.11", metric)}
	beneath := hold.Hold{Owner: way.Owner, Spec: &noderoute.Spec{CIDR: netip.MustParsePrefix("10.244.8.0/24"), Metric: stamp.Beneath(metric), Closed: true}}
	at := func() string {
		routes, err := netlink.RouteGet(net.ParseIP("10.244.8.1"))
		if err != nil {
			return err.Error()
		}
		return routes[0].Gw.String()
	}
	nettest.Run(t, nil, "ip route add 10.244.0.0/16 via 192.0.2.254") // where packets would go otherwise
	t.Cleanup(func() { nettest.Run(t, nil, "ip route del 10.244.0.0/16") })
	for _, step := range []struct {
		do   func(context.Context, hold.Hold) error
		h    hold.Hold
		goes string
	}{
		{k.Acquire, beneath, unix.EHOSTUNREACH.Error()},
		{k.Acquire, way, "192.0.2.11"},
		{func(ctx context.Context, h hold.Hold) error { return k.Release(ctx, []hold.Hold{h})[0] }, way, unix.EHOSTUNREACH.Error()},
		{func(ctx context.Context, h hold.Hold) error { return k.Release(ctx, []hold.Hold{h})[0] }, beneath, "192.0.2.254"},
	} {
		must(t, step.do(t.Context(), step.h))
		if to := at(); to != step.goes {
			t.Errorf("after %s: packets go to %s, not %s", step.h.Spec, to, step.goes)
		}
	}
	if bad := (&noderoute.Spec{CIDR: netip.MustParsePrefix("10.244.8.0/24"), Metric: metric, Closed: true}); k.Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: bad}) == nil {
		t.Error("a closed route has the metric of a way")
	}
}

// A gateway that is on no link of the node is refused.
func TestNotOnLink(t *testing.T) {
	k, metric := newKind(t, "test")
	for _, s := range []*noderoute.Spec{route("10.244.9.0/24", "198.51.100.1", metric), route("fd00:244:9::/64", "2001:db8:9::1", metric)} {
		if err := k.Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: s}); !errors.Is(err, kernel.ErrUnreachable) {
			t.Errorf("%s: %v", s, err)
		}
	}
}
