package macvlan_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

const instance = "testabcdef"

// Addresses of a machine of the network behind the node's uplink.
var (
	lan4 = netip.MustParseAddr("192.0.2.254")
	lan6 = netip.MustParseAddr("2001:db8::fe")
)

// fixture is an agent's macvlans on a node whose link "uplink" leads to a network.
type fixture struct {
	testing.TB
	node, lan *ns.Netns
	conn      *rtnl.Conn
	groups    stamp.Groups
	all       *macvlan.Macvlans
	kind      hold.Kind

	mu   sync.Mutex
	pods []*ns.Netns
}

func newFixture(t testing.TB, change ...func(*macvlan.Options)) *fixture {
	t.Helper()
	nettest.Need(t)
	f := &fixture{TB: t, node: nettest.Node(t), lan: nettest.Node(t)}
	var err error
	f.conn, err = rtnl.Open(f.node)
	must(t, err)
	t.Cleanup(func() { f.conn.Close() })
	f.groups, err = stamp.GroupsOf(instance)
	must(t, err)
	f.uplink()
	o := macvlan.Options{Conn: f.conn, At: f.node, Instance: instance}
	for _, c := range change {
		c(&o)
	}
	f.all = macvlan.New(o)
	f.kind = f.all.Kind()
	return f
}

// uplink makes the node's link to the network.
func (f *fixture) uplink() {
	f.Helper()
	must(f, f.conn.Do(
		rtnl.AddVeth(rtnl.End{Name: "uplink"}, 0, rtnl.End{Name: "lan"}, f.lan.Fd()),
		rtnl.SetLink("uplink", rtnl.NoAddrGen()), rtnl.SetLink("uplink", rtnl.Up())))
	nettest.Run(f, f.lan, fmt.Sprintf("ip addr add %s/24 dev lan", lan4))
	nettest.Run(f, f.lan, fmt.Sprintf("ip addr add %s/64 dev lan nodad", lan6))
	nettest.Run(f, f.lan, "ip link set lan up")
	must(f, f.conn.Do(rtnl.GetLink("uplink", new(rtnl.Link)))) // brings its carrier, and with it a route for multicast, up to date
}

// pod makes a pod that has no macvlan yet.
func (f *fixture) pod() *ns.Netns {
	f.Helper()
	p := nettest.Pod(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods = append(f.pods, p)
	return p
}

// hold plans the nth macvlan for a pod.
func (f *fixture) hold(pod *ns.Netns, n int, change ...func(*macvlan.Spec)) hold.Hold {
	id := hold.NewID()
	s := spec(id, n)
	s.Netns = pod.Ref()
	for _, c := range change {
		c(s)
	}
	return hold.Hold{Owner: id, Spec: s}
}

func spec(owner hold.ID, n int) *macvlan.Spec {
	return &macvlan.Spec{
		Alias:  macvlan.Alias(instance, owner, "net1", fmt.Sprintf("net/pod-%d/net1", n)),
		Ifname: "net1", Parent: "uplink", Mode: "bridge", MTU: 1400, MAC: fmt.Sprintf("02:00:00:00:01:%02x", n),
		Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", n)), netip.MustParsePrefix(fmt.Sprintf("2001:db8::%x/64", n))},
		Routes: []macvlan.Route{
			{Dst: netip.MustParsePrefix("198.51.100.0/24")},
			{Dst: netip.MustParsePrefix("203.0.113.0/24"), Gateway: lan4},
			{Dst: netip.MustParsePrefix("2001:db8:1::/64"), Gateway: lan6},
		},
	}
}

// taken makes a pod with the nth macvlan.
func (f *fixture) taken(n int, change ...func(*macvlan.Spec)) (*ns.Netns, hold.Hold) {
	f.Helper()
	pod := f.pod()
	h := f.hold(pod, n, change...)
	f.take(h)
	return pod, h
}

func (f *fixture) take(h hold.Hold) {
	f.Helper()
	must(f, f.kind.Acquire(f.Context(), h), f.kind.Settle(f.Context(), h))
}

func (f *fixture) release(h hold.Hold) {
	f.Helper()
	must(f, f.kind.Release(f.Context(), []hold.Hold{h})...)
}

func (f *fixture) verify(h hold.Hold) error {
	return f.kind.Verify(f.Context(), nil, []hold.Hold{h})[0]
}

func (f *fixture) glance(h hold.Hold) error {
	return f.kind.Verify(f.Context(), hold.Glance(), []hold.Hold{h})[0]
}

func specOf(h hold.Hold) *macvlan.Spec { return h.Spec.(*macvlan.Spec) }

// inside connects to a hold's pod.
func (f *fixture) inside(h hold.Hold) *rtnl.Conn {
	f.Helper()
	pod, err := specOf(h).Netns.Open()
	must(f, err)
	c, err := rtnl.Open(pod)
	must(f, err)
	f.Cleanup(func() { c.Close(); pod.Close() })
	return c
}

// show reads a hold's macvlan by its name; the index is 0 if there is none.
func (f *fixture) show(h hold.Hold) (l rtnl.Macvlan) {
	f.Helper()
	if f.inside(h).Do(rtnl.GetMacvlan(specOf(h).Ifname, &l)) != nil {
		return rtnl.Macvlan{}
	}
	return l
}

// snapshot has the node, and the pods that have macvlans.
func (f *fixture) snapshot() string {
	text := []string{nettest.Snapshot(f, f.node).String()}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pods {
		c, err := rtnl.Open(p)
		if err != nil {
			continue // its test has ended
		}
		has := false
		must(f, c.EachMacvlan(func(l rtnl.Macvlan) error {
			has = true
			return nil
		}))
		if has {
			_ = c.Do(rtnl.GetLink("net1", new(rtnl.Link))) // brings its carrier, and with it a route for multicast, up to date
			text = append(text, p.Ref().Path, nettest.Snapshot(f, p).Only("link", "address").String())
		}
		c.Close()
	}
	return strings.Join(text, "\n")
}
