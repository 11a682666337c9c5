package agent

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

// network returns a CIDR in the form that netlink takes.
func network(t testing.TB, cidr string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(cidr)
	must(t, err)
	return n
}

// unreachable is the route of a pool.
func (r *rig) unreachable(cidr string) *netlink.Route {
	return &netlink.Route{Dst: network(r.t, cidr), Type: unix.RTN_UNREACHABLE, Priority: int(r.node.Metric), Protocol: stamp.Protocol}
}

func flushTables(t testing.TB) {
	t.Helper()
	c, err := nftables.New()
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
}

// findings lists the findings of an audit, each as "type kind".
func (r *rig) findings() (all []string) {
	r.t.Helper()
	a, err := r.Audit(r.t.Context())
	must(r.t, err)
	for _, f := range a.Findings {
		all = append(all, f.Type+" "+f.Kind)
	}
	return all
}

// Somebody damages the host's side of a pod, or what the agent itself holds. An audit reports the
// damage, and a sweep mends it: amazon-vpc-cni #1600, #3309 (rules removed by others stayed away until
// a restart). The damage is real: the oracle sees it exactly as long as the audit does. The pod can be
// reached afterwards.
func TestSweepMends(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(r *rig, host string)
		finds  string
	}{
		{"host route deleted", func(r *rig, host string) {
			must(r.t, netlink.RouteDel(&netlink.Route{Dst: network(r.t, "10.88.0.1/32"), LinkIndex: nettest.Link(r.t, host).Attrs().Index, Scope: unix.RT_SCOPE_LINK}))
		}, "changed link"},
		{"unreachable route deleted", func(r *rig, _ string) {
			must(r.t, netlink.RouteDel(r.unreachable("10.88.0.0/24")))
		}, "missing poolroute"},
		{"unreachable route of IPv6 deleted", func(r *rig, _ string) {
			must(r.t, netlink.RouteDel(r.unreachable("fd00:88::/64")))
		}, "missing poolroute"},
		{"table flushed", func(r *rig, _ string) { flushTables(r.t) }, "missing egress"},
		{"link down", func(r *rig, host string) { must(r.t, netlink.LinkSetDown(nettest.Link(r.t, host))) }, "changed link"},
		{"link down and up", func(r *rig, host string) {
			l := nettest.Link(r.t, host)
			must(r.t, netlink.LinkSetDown(l), netlink.LinkSetUp(l))
		}, "changed link"},
		{"link renamed", func(r *rig, host string) { must(r.t, netlink.LinkSetName(nettest.Link(r.t, host), "other")) }, "changed link"},
		{"link deleted", func(r *rig, host string) { must(r.t, netlink.LinkDel(nettest.Link(r.t, host))) }, "missing link"},
		{"group changed", func(r *rig, host string) { must(r.t, netlink.LinkSetGroup(nettest.Link(r.t, host), 0)) }, "changed link"},
		{"MTU changed", func(r *rig, host string) { must(r.t, netlink.LinkSetMTU(nettest.Link(r.t, host), 1300)) }, "changed link"},
		{"MAC changed", func(r *rig, host string) {
			must(r.t, netlink.LinkSetHardwareAddr(nettest.Link(r.t, host), net.HardwareAddr{2, 0, 0, 0, 0, 9}))
		}, "changed link"},
		{"alias changed", func(r *rig, host string) { must(r.t, netlink.LinkSetAlias(nettest.Link(r.t, host), "mine")) }, "changed link"},
		{"neighbours flushed", func(r *rig, host string) {
			all := nettest.List(r.t, func() ([]netlink.Neigh, error) {
				return netlink.NeighList(nettest.Link(r.t, host).Attrs().Index, unix.AF_UNSPEC)
			})
			for _, n := range all {
				must(r.t, netlink.NeighDel(&n))
			}
		}, "changed link"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			a, b := nettest.Pod(t), nettest.Pod(t)
			first := r.add(request("a", a))
			r.add(request("b", b))
			look := func() nettest.State { return nettest.Snapshot(t, nil).Without("sysctl", "conntrack") }
			nettest.Eventually(t, "the kernel to give both links a multicast route of its own", func() bool {
				return strings.Count(look().Only("route").String(), "multicast ff00::/8") == 2
			})
			whole := look()
			c.damage(r, first.Interfaces[0].Name)
			if got := r.findings(); !slices.Contains(got, c.finds) {
				t.Errorf("an audit finds %v, not %s", got, c.finds)
			}
			if whole.Diff(look()) == "" {
				t.Error("the oracle finds nothing, and the audit does")
			}
			r.Sweep(t.Context())
			r.wantClean()
			nettest.Eventually(t, "the oracle to find nothing any more, as the audit", func() bool { return whole.Diff(look()) == "" })
			for _, to := range addresses(first) {
				nettest.Ping(t, b, to)
			}
		})
	}
}

// Somebody has put another route in the place of a pool's route. Every audit reports that, and
// no sweep replaces the other route; once the other route is gone, the sweep puts the pool's
// route back.
func TestSweepLeavesForeignRoute(t *testing.T) {
	r := start(t)
	foreign := &netlink.Route{Dst: network(t, "10.88.0.0/24"), Type: unix.RTN_BLACKHOLE, Priority: int(r.node.Metric), Protocol: unix.RTPROT_STATIC}
	must(t, netlink.RouteReplace(foreign))
	for range 2 {
		r.Sweep(t.Context())
		if got := r.findings(); !slices.Contains(got, "missing poolroute") {
			t.Errorf("an audit finds %v", got)
		}
		if s := nettest.Snapshot(t, nil).Only("route").String(); !strings.Contains(s, "blackhole 10.88.0.0/24") {
			t.Fatalf("somebody's route is gone:\n%s", s)
		}
	}
	must(t, netlink.RouteDel(foreign))
	r.Sweep(t.Context())
	r.wantClean()
}

// Changes that a pod makes inside are the pod's own business: CHECK reports them, and no sweep
// undoes them. Only a link that the pod deletes, the agent makes again.
func TestSweepKeepsOutOfPods(t *testing.T) {
	r := start(t)
	pod := nettest.Pod(t)
	r.add(request("c", pod))
	must(t, pod.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, &netlink.Addr{IPNet: network(t, "10.88.0.1/32")})
	}))
	before := nettest.Snapshot(t, pod).Deliberate()
	r.Sweep(t.Context())
	nettest.Same(t, before, nettest.Snapshot(t, pod).Deliberate(), "a sweep changes the pod")
	r.wantClean()

	e := r.index.All()[0]
	h, _ := e.Owner.Find("link")
	if err := r.node.Links.VerifyPodCeded(t.Context(), h, rtnl.Families{}); err == nil || !strings.Contains(err.Error(), "10.88.0.1") {
		t.Errorf("the lost address is not told: %v", err)
	}
	must(t, pod.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}))
	if got := r.findings(); !slices.Equal(got, []string{"missing link"}) {
		t.Errorf("an audit finds %v", got)
	}
	r.Sweep(t.Context())
	r.wantClean()
	must(t, r.node.Links.VerifyPodCeded(t.Context(), h, rtnl.Families{}))
}

// An audit at once reports a thing with the instance's stamp and no owner, and the second sweep
// that sees the thing removes it: at the first sweep an ADD may just be making it. A thing of
// another instance stays.
func TestSweepRemovesOrphansTheSecondTime(t *testing.T) {
	r := start(t)
	other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bzzzzaaaaaaaaaa"}}
	must(t, netlink.LinkAdd(other))
	defer netlink.LinkDel(other)
	foreign := r.unreachable("10.77.0.0/16")
	foreign.Priority++
	must(t, netlink.RouteAdd(foreign))
	defer netlink.RouteDel(foreign)
	without := nettest.Snapshot(t, nil).Only("link", "route").String()

	id := hold.NewID()
	name := stamp.Link(r.core.Instance, id)
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, Group: r.node.Groups.Live()},
		PeerName:  "orphan",
	}))
	must(t, netlink.LinkSetAlias(nettest.Link(t, name), stamp.Alias(r.core.Instance, id, attachment.Key{}, 0)))
	must(t, netlink.RouteAdd(r.unreachable("10.66.0.0/16")))
	with := nettest.Snapshot(t, nil).Only("link", "route").String()
	want := []string{"left-over link", "left-over poolroute"}
	for sweep := range 2 {
		got := r.findings()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("sweep %d: an audit finds %v, not %v", sweep, got, want)
		}
		if now := nettest.Snapshot(t, nil).Only("link", "route").String(); now != with {
			t.Errorf("before sweep %d: something is gone already:\n%s", sweep, now)
		}
		r.Sweep(t.Context())
	}
	if now := nettest.Snapshot(t, nil).Only("link", "route").String(); now != without {
		t.Errorf("after two sweeps, got\n%s\nwant\n%s", now, without)
	}
	r.wantClean()
}
