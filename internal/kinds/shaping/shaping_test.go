package shaping_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// fixture is a node on which another plugin has made links to pods.
type fixture struct {
	testing.TB
	node *ns.Netns
	conn *rtnl.Conn
	all  *shaping.Limits

	mu    sync.Mutex
	specs []*shaping.Spec
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	nettest.Need(t)
	for _, name := range []string{"ip", "tc"} { // a skip within a test of a kind would end its parent
		nettest.Program(t, name)
	}
	f := &fixture{TB: t, node: nettest.Node(t)}
	var err error
	f.conn, err = rtnl.Open(f.node)
	must(t, err)
	t.Cleanup(func() { f.conn.Close() })
	f.all = shaping.New(shaping.Options{Conn: f.conn})
	return f
}

// veth gives a new pod an eth0, whose other end has a name.
func (f *fixture) veth(name string) *ns.Netns {
	f.Helper()
	pod := nettest.Pod(f)
	must(f, f.conn.Do(rtnl.AddVeth(rtnl.End{Name: name}, 0, rtnl.End{Name: "eth0"}, pod.Fd()), rtnl.SetLink(name, rtnl.Up())))
	nettest.Run(f, pod, "ip link set eth0 up")
	return pod
}

func (f *fixture) link(name string) (l rtnl.Link) {
	f.Helper()
	must(f, f.conn.Do(rtnl.GetLink(name, &l)))
	return l
}

// spec limits the eth0 of a new pod.
func (f *fixture) spec() *shaping.Spec {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	name := fmt.Sprintf("veth%d", len(f.specs))
	pod := f.veth(name)
	s := &shaping.Spec{
		Link: name, Index: f.link(name).Index, Netns: pod.Ref(), Ifname: "eth0", MTU: 1500,
		Ingress: rtnl.Rate{Rate: 1_250_000, Burst: 100_000}, Egress: rtnl.Rate{Rate: 2_500_000, Burst: 200_000},
	}
	f.specs = append(f.specs, s)
	return s
}

// limits describes the limits of all links, at both of their ends.
func (f *fixture) limits() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all strings.Builder
	for _, s := range f.specs {
		var q rtnl.Qdisc
		must(f, f.conn.GetQdisc(s.Index, &q))
		policed, err := f.conn.Policed(s.Index)
		must(f, err)
		pod, err := s.Netns.Open()
		must(f, err)
		conn, err := rtnl.Open(pod)
		must(f, err)
		var inside rtnl.Qdisc
		var end rtnl.Link
		must(f, conn.Do(rtnl.GetLink(s.Ifname, &end)))
		must(f, conn.GetQdisc(end.Index, &inside))
		conn.Close()
		pod.Close()
		if q.Kind != "noqueue" || inside.Kind != "noqueue" || len(policed) > 0 {
			fmt.Fprintf(&all, "%s: %s, %v, in the pod %s\n", s.Link, q, policed, inside)
		}
	}
	return all.String()
}

// disciplines lists the queueing disciplines of the node.
func (f *fixture) disciplines() (all string) {
	for line := range strings.Lines(nettest.Snapshot(f, f.node).String()) {
		if strings.HasPrefix(line, "qdisc ") {
			all += line
		}
	}
	return all
}

// tc runs tc on the node's end of a hold's link.
func (f *fixture) tc(h hold.Hold, format string) {
	f.Helper()
	nettest.Run(f, f.node, fmt.Sprintf(format, h.Spec.(*shaping.Spec).Link))
}

func TestKind(t *testing.T) {
	f := newFixture(t)
	kindtest.Run(t, kindtest.Kind{
		Kind: f.all.Kind(),
		Spec: func(testing.TB, hold.ID) hold.Spec {
			return f.spec()
		},
		Example: &shaping.Spec{
			Link: "veth1", Index: 12, Netns: ns.Ref{Path: "/run/netns/a", Dev: 4, Ino: 4026532000, ID: 7}, Ifname: "eth0", MTU: 1500,
			Ingress: rtnl.Rate{Rate: 1_250_000, Burst: 100_000}, Egress: rtnl.Rate{Rate: 2_500_000, Burst: 200_000},
		},
		Snapshot: f.limits,
		Disguise: func(t testing.TB, h hold.Hold) {
			f.tc(h, "tc qdisc replace dev %s root handle be98: tbf rate 1mbit burst 10kb limit 20kb")
		},
		Foreign: func(t testing.TB, h hold.Hold) func() error {
			f.tc(h, "tc qdisc add dev %s root handle 7: pfifo")
			return func() error {
				var q rtnl.Qdisc
				if err := f.conn.GetQdisc(h.Spec.(*shaping.Spec).Index, &q); err != nil || q.Kind != "pfifo" {
					return fmt.Errorf("it is %s, %v", q, err)
				}
				return nil
			}
		},
	})
}

// A link that is gone has nothing to give back, and its limits are never taken again; so is another link that has its index, or its
// name.
func TestGone(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *fixture, s *shaping.Spec)
	}{
		{"gone", func(f *fixture, s *shaping.Spec) { must(f, f.conn.Do(rtnl.DelLinkAt(s.Index))) }},
		{"another of the name", func(f *fixture, s *shaping.Spec) {
			must(f, f.conn.Do(rtnl.DelLinkAt(s.Index)))
			f.veth(s.Link)
			nettest.Run(f, f.node, fmt.Sprintf("tc qdisc add dev %s root handle be98: tbf rate 1mbit burst 10kb limit 20kb", s.Link))
		}},
		{"another of the index", func(f *fixture, s *shaping.Spec) { s.Link = "vethother" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			k, s := f.all.Kind(), f.spec()
			h := hold.Hold{Owner: hold.NewID(), Spec: s}
			must(t, k.Acquire(t.Context(), h))
			c.change(f, s)
			before := f.disciplines()
			if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, hold.ErrGone) {
				t.Errorf("Verify says %v", err)
			}
			if err := k.Acquire(t.Context(), h); !errors.Is(err, hold.ErrHomeless) {
				t.Errorf("Acquire says %v", err)
			}
			must(t, k.Release(t.Context(), []hold.Hold{h})[0])
			if after := f.disciplines(); after != before {
				t.Errorf("the node had\n%sand has\n%s", before, after)
			}
		})
	}
}

// Look finds the end on the node that the kernel knows, and the links by which the node reaches addresses.
func TestLook(t *testing.T) {
	f := newFixture(t)
	pod := f.veth("veth1")
	nettest.Run(t, f.node, "ip route add 10.9.0.2/32 dev veth1")
	there, nowhere := netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.9.0.3")
	s, err := f.all.Look(pod.Ref(), "eth0", []netip.Addr{there, nowhere})
	must(t, err)
	if want := f.link("veth1"); s.Host.Index != want.Index || s.Host.Name != "veth1" || s.Pod.Name != "eth0" || s.By[0] != want.Index || s.By[1] != 0 {
		t.Errorf("sees %+v", s)
	}
	nettest.Run(t, pod, "ip link add both type veth peer name ends")
	if s, err := f.all.Look(pod.Ref(), "both", nil); err != nil || s.Host.Index != 0 {
		t.Errorf("of a pair that is in the pod: %+v, %v", s, err)
	}
	if _, err := f.all.Look(pod.Ref(), "eth9", nil); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("of no interface: %v", err)
	}
}

// CHECK sees a limit that the pod has taken away from its end.
func TestVerifyPod(t *testing.T) {
	f := newFixture(t)
	k, s := f.all.Kind(), f.spec()
	h := hold.Hold{Owner: hold.NewID(), Spec: s}
	must(t, k.Acquire(t.Context(), h))
	must(t, f.all.VerifyPod(t.Context(), s))
	pod, err := s.Netns.Open()
	must(t, err)
	defer pod.Close()
	nettest.Run(t, pod, "tc qdisc del dev eth0 root")
	if err := f.all.VerifyPod(t.Context(), s); !errors.Is(err, hold.ErrChanged) {
		t.Errorf("without the limit: %v", err)
	}
	must(t, k.Acquire(t.Context(), h))
	must(t, f.all.VerifyPod(t.Context(), s))
	nettest.Run(t, pod, "ip link del eth0")
	if err := f.all.VerifyPod(t.Context(), s); !errors.Is(err, hold.ErrGone) {
		t.Errorf("without the interface: %v", err)
	}
}
