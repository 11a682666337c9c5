package podgateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/podgateway"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var (
	must = nettest.Must
	gw4  = netip.MustParseAddr("10.1.1.1")
	gw6  = netip.MustParseAddr("fd00:1::1")
)

// furnished makes a pod that has two interfaces, and default routes through the first.
func furnished(t testing.TB) *ns.Netns {
	t.Helper()
	p := nettest.Pod(t)
	for _, cmd := range []string{
		"ip link add eth0 type veth peer peer0", "ip link add net1 type veth peer peer1",
		"ip link set eth0 addrgenmode none", "ip link set peer0 addrgenmode none", "ip link set net1 addrgenmode none", "ip link set peer1 addrgenmode none",
		"ip link set peer0 up", "ip link set eth0 up", "ip link set peer1 up", "ip link set net1 up",
		"ip addr add 10.0.0.7/24 dev eth0", "ip addr add fd00::7/64 dev eth0 nodad",
		"ip addr add 10.1.1.7/24 dev net1", "ip addr add fd00:1::7/64 dev net1 nodad",
		"ip route add default via 10.0.0.1 dev eth0 mtu 1300", "ip route add default via 10.0.0.2 dev eth0 metric 50", "ip -6 route add default via fd00::1 dev eth0",
	} {
		nettest.Run(t, p, cmd)
	}
	return p
}

func spec(p *ns.Netns, gateways ...netip.Addr) *podgateway.Spec {
	return &podgateway.Spec{Netns: p.Ref(), Ifname: "net1", Gateways: gateways}
}

// routes are the pod's routes and rules.
func routes(t testing.TB, p *ns.Netns) string {
	t.Helper()
	return nettest.Snapshot(t, p).Only("route", "rule").String()
}

// defaults are the pod's default routes of the main table, as ip shows them, each family's in the kernel's order.
func defaults(t testing.TB, p *ns.Netns) (lines []string) {
	t.Helper()
	for _, cmd := range []string{"ip -4 route show default", "ip -6 route show default"} {
		for line := range strings.Lines(show(t, p, cmd)) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// show runs a command in a pod, and returns what it prints.
func show(t testing.TB, p *ns.Netns, command string) string {
	t.Helper()
	words := strings.Fields(command)
	out, err := nettest.Command(p, nettest.Program(t, words[0]), words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

func TestKind(t *testing.T) {
	nettest.Need(t)
	var mu sync.Mutex
	var pods []*ns.Netns
	kindtest.Run(t, kindtest.Kind{
		Kind: podgateway.Kind(),
		Spec: func(t testing.TB, _ hold.ID) hold.Spec {
			p := furnished(t)
			mu.Lock()
			defer mu.Unlock()
			pods = append(pods, p)
			return spec(p, gw4, gw6)
		},
		Example: &podgateway.Spec{Netns: ns.Ref{Path: "/run/netns/pod", Dev: 4, Ino: 5, ID: 6}, Ifname: "net1", Gateways: []netip.Addr{gw4, gw6}},
		Snapshot: func() string {
			mu.Lock()
			defer mu.Unlock()
			var all []string
			for _, p := range pods {
				if c, err := rtnl.Open(p); err == nil { // a pod of a test that has ended is gone
					c.Close()
					if state := routes(t, p); state != pristine(t) {
						all = append(all, p.Ref().Path, state)
					}
				}
			}
			return strings.Join(all, "\n")
		},
		Disguise: func(t testing.TB, h hold.Hold) {
			p, err := h.Spec.(*podgateway.Spec).Netns.Open()
			must(t, err)
			defer p.Close()
			nettest.Run(t, p, "ip rule del from 10.0.0.7 pref 32763")
		},
	})
}

// pristine are the routes and rules of a pod that nobody has touched.
func pristine(t testing.TB) string {
	t.Helper()
	once.Do(func() { untouched = routes(t, furnished(t)) })
	return untouched
}

var (
	once      sync.Once
	untouched string
)

// The pod's default routes lead through the interface, and those of the others come back as they were.
func TestReplaces(t *testing.T) {
	nettest.Need(t)
	p := furnished(t)
	before := routes(t, p)
	k := podgateway.Kind()
	h := hold.Hold{Owner: "o", Spec: spec(p, gw4, gw6)}
	must(t, k.Acquire(t.Context(), h))
	want := []string{"default via 10.1.1.1 dev net1", "default via fd00:1::1 dev net1 metric 1024 pref medium"}
	if got := defaults(t, p); !slices.Equal(got, want) {
		t.Errorf("the pod has %q, want %q", got, want)
	}
	for cmd, dev := range map[string]string{
		"ip route get 192.0.2.1": "net1", "ip -6 route get 2001:db8::1": "net1", // nobody has said a source
		"ip route get 192.0.2.1 from 10.0.0.7": "eth0", "ip -6 route get 2001:db8::1 from fd00::7": "eth0", // an answer
		"ip route get 10.1.1.9 from 10.0.0.7": "net1", // a narrower route goes first
	} {
		if got := show(t, p, cmd); !strings.Contains(got, "dev "+dev+" ") {
			t.Errorf("%s: %s, want %s", cmd, got, dev)
		}
	}
	is := func(want error) {
		t.Helper()
		if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, want) {
			t.Errorf("Verify says %v, want %v", err, want)
		}
	}
	is(nil)
	nettest.Run(t, p, "ip route add default via 10.0.0.3 dev eth0 metric 9")
	is(hold.ErrChanged)
	nettest.Run(t, p, "ip route del default via 10.1.1.1 dev net1")
	is(hold.ErrGone)
	must(t, k.Acquire(t.Context(), h))
	is(nil)
	must(t, k.Release(t.Context(), []hold.Hold{h})...)
	nettest.Run(t, p, "ip route del default via 10.0.0.3 dev eth0 metric 9")
	if after := routes(t, p); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// The other family's default route stays; nor does a hold of that family, which another network has, go with this one.
func TestFamily(t *testing.T) {
	nettest.Need(t)
	p := furnished(t)
	k := podgateway.Kind()
	four, six := hold.Hold{Owner: "a", Spec: spec(p, gw4)}, hold.Hold{Owner: "b", Spec: spec(p, gw6)}
	must(t, k.Acquire(t.Context(), four))
	is := func(want ...string) {
		t.Helper()
		if got := defaults(t, p); !slices.Equal(got, want) {
			t.Errorf("the pod has %q, want %q", got, want)
		}
	}
	is("default via 10.1.1.1 dev net1", "default via fd00::1 dev eth0 metric 1024 pref medium")
	must(t, k.Acquire(t.Context(), six))
	must(t, k.Release(t.Context(), []hold.Hold{four})...)
	is("default via 10.0.0.1 dev eth0 mtu 1300", "default via 10.0.0.2 dev eth0 metric 50", "default via fd00:1::1 dev net1 metric 1024 pref medium")
	must(t, k.Verify(t.Context(), nil, []hold.Hold{six})[0])
}

// A route that Berth has put behind another interface's stays, and Berth's other default routes go.
func TestBehind(t *testing.T) {
	nettest.Need(t)
	p := furnished(t)
	c, err := rtnl.Open(p)
	must(t, err)
	defer c.Close()
	eth0, err := c.Link("eth0")
	must(t, err)
	behind := fmt.Sprintf("default via 10.0.0.4 dev eth0 metric %d", 1<<16+eth0.Index)
	nettest.Run(t, p, "ip route add "+behind+" proto 98")
	nettest.Run(t, p, "ip route add default via 10.0.0.3 dev eth0 metric 9 proto 98")
	must(t, podgateway.Kind().Acquire(t.Context(), hold.Hold{Owner: "o", Spec: spec(p, gw4)}))
	var got []string
	for _, line := range defaults(t, p)[:2] {
		got = append(got, strings.Replace(line, " proto 98", "", 1))
	}
	if want := []string{"default via 10.1.1.1 dev net1", behind}; !slices.Equal(got, want) || len(defaults(t, p)) != 3 {
		t.Errorf("the pod has %q, want %q and IPv6's", got, want)
	}
}

// An agent may die after each step. A route that is in both tables by then is put aside, or put back, by the next one.
func TestHalfMade(t *testing.T) {
	nettest.Need(t)
	p := furnished(t)
	before := routes(t, p)
	c, err := rtnl.Open(p)
	must(t, err)
	defer c.Close()
	eth0, err := c.Link("eth0")
	must(t, err)
	half := func() {
		t.Helper()
		nettest.Run(t, p, fmt.Sprintf("ip route add default via 10.0.0.1 dev eth0 mtu 1300 table %d", 1<<30+eth0.Index))
	}
	k := podgateway.Kind()
	h := hold.Hold{Owner: "o", Spec: spec(p, gw4, gw6)}
	for _, acquires := range []bool{false, true} {
		half()
		if acquires {
			must(t, k.Acquire(t.Context(), h), k.Verify(t.Context(), nil, []hold.Hold{h})[0])
		}
		must(t, k.Release(t.Context(), []hold.Hold{h})...)
		if after := routes(t, p); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	}
}

// What the interface cannot reach is refused, and nothing changes.
func TestRefused(t *testing.T) {
	nettest.Need(t)
	p := furnished(t)
	k := podgateway.Kind()
	nettest.Run(t, p, "ip addr del fd00:1::7/64 dev net1")
	before := routes(t, p)
	for says, g := range map[string]netip.Addr{"has no address of IPv6": gw6, "is on no network of interface net1": netip.MustParseAddr("192.0.2.9")} {
		h := hold.Hold{Owner: "o", Spec: spec(p, g)}
		err := k.Acquire(t.Context(), h)
		var numbered *api.Error
		if !errors.As(err, &numbered) || numbered.Code != cni.CodeConfig || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", g, err, says)
		}
		must(t, k.Release(t.Context(), []hold.Hold{h})...)
		if after := routes(t, p); after != before {
			t.Errorf("%s: before\n%s\nafter\n%s", g, before, after)
		}
	}
}

// A pod that is gone keeps nobody waiting, and neither does one whose interface has gone before the hold.
func TestGone(t *testing.T) {
	nettest.Need(t)
	p := furnished(t)
	before := routes(t, p)
	k := podgateway.Kind()
	h := hold.Hold{Owner: "o", Spec: spec(p, gw4, gw6)}
	must(t, k.Acquire(t.Context(), h))
	nettest.Run(t, p, "ip link del net1")
	must(t, k.Release(t.Context(), []hold.Hold{h})...)
	for line := range strings.Lines(before) {
		if strings.Contains(line, "default") && !strings.Contains(routes(t, p), line) {
			t.Errorf("the pod lacks %s", line)
		}
	}
	if rules := show(t, p, "ip rule show"); strings.Contains(rules, "10.0.0.7") {
		t.Errorf("the pod still has\n%s", rules)
	}
	nettest.Delete(t, p)
	must(t, k.Release(context.Background(), []hold.Hold{h})...)
	if err := k.Acquire(t.Context(), h); !errors.Is(err, hold.ErrHomeless) {
		t.Errorf("a pod that is gone: %v", err)
	}
	if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; !errors.Is(err, hold.ErrGone) {
		t.Errorf("a pod that is gone: %v", err)
	}
}
