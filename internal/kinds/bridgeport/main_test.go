package bridgeport_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

const instance = "testabcdef"

// Addresses of a machine of the network behind the node's bridge.
var (
	lan4 = netip.MustParseAddr("192.0.2.254")
	lan6 = netip.MustParseAddr("2001:db8::fe")
)

// fixture is an agent's ports on a node whose bridge br0 has a port, "uplink", that leads to a network.
type fixture struct {
	testing.TB
	node, lan *ns.Netns
	conn      *rtnl.Conn
	groups    stamp.PortGroups
	all       *bridgeport.Ports
	kind      hold.Kind
}

func newFixture(t testing.TB, change ...func(*bridgeport.Options)) *fixture {
	t.Helper()
	nettest.Need(t)
	f := &fixture{TB: t, node: nettest.Node(t), lan: nettest.Node(t)}
	var err error
	f.conn, err = rtnl.Open(f.node)
	must(t, err)
	t.Cleanup(func() { f.conn.Close() })
	f.groups, err = stamp.PortGroupsOf(instance)
	must(t, err)
	must(t, f.conn.Do(
		rtnl.AddBridge(rtnl.Bridge{Name: "br0", MAC: "0a:00:00:00:00:01"}),
		rtnl.SetLink("br0", rtnl.NoAddrGen()), rtnl.SetLink("br0", rtnl.Up())))
	var b rtnl.Bridge
	must(t, f.conn.Do(rtnl.GetBridge("br0", &b)))
	must(t, f.conn.Do(
		rtnl.AddVeth(rtnl.End{Name: "uplink", Master: b.Index}, 0, rtnl.End{Name: "lan"}, f.lan.Fd()),
		rtnl.SetLink("uplink", rtnl.NoAddrGen()), rtnl.SetLink("uplink", rtnl.Up())))
	nettest.Run(t, f.lan, fmt.Sprintf("ip addr add %s/24 dev lan", lan4))
	nettest.Run(t, f.lan, fmt.Sprintf("ip addr add %s/64 dev lan nodad", lan6))
	nettest.Run(t, f.lan, "ip link set lan up")
	must(t, f.conn.Do(rtnl.GetLink("uplink", new(rtnl.Link)), rtnl.GetLink("br0", new(rtnl.Link)))) // brings their carriers up to date
	o := bridgeport.Options{Conn: f.conn, At: f.node, Instance: instance}
	for _, c := range change {
		c(&o)
	}
	f.all = bridgeport.New(o)
	f.kind = f.all.Kind()
	return f
}

// hold plans the nth port for a pod.
func (f *fixture) hold(pod *ns.Netns, n int, change ...func(*bridgeport.Spec)) hold.Hold {
	id := hold.NewID()
	s := spec(id, n)
	s.Netns = pod.Ref()
	for _, c := range change {
		c(s)
	}
	return hold.Hold{Owner: id, Spec: s}
}

func keyOf(n int) stamp.Key {
	return stamp.Key{Network: "net", ContainerID: fmt.Sprintf("pod-%d", n), Ifname: "net1"}
}

func spec(owner hold.ID, n int) *bridgeport.Spec {
	a4, a6 := fmt.Sprintf("192.0.2.%d", n), fmt.Sprintf("2001:db8::%x", n)
	return &bridgeport.Spec{
		Name: stamp.Port(instance, owner), Alias: stamp.PortAlias(instance, owner, keyOf(n), 7, a4, a6),
		Ifname: "net1", Bridge: "br0", MTU: 1400, MAC: fmt.Sprintf("02:00:00:00:01:%02x", n), HostMAC: bridgeport.HostMAC(owner),
		Addresses: []netip.Prefix{netip.MustParsePrefix(a4 + "/24"), netip.MustParsePrefix(a6 + "/64")},
		Routes: []bridgeport.Route{
			{Dst: netip.MustParsePrefix("198.51.100.0/24")},
			{Dst: netip.MustParsePrefix("203.0.113.0/24"), Gateway: lan4},
			{Dst: netip.MustParsePrefix("2001:db8:1::/64"), Gateway: lan6},
		},
	}
}

// taken makes a pod with the nth port.
func (f *fixture) taken(n int, change ...func(*bridgeport.Spec)) (*ns.Netns, hold.Hold) {
	f.Helper()
	pod := nettest.Pod(f)
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

func specOf(h hold.Hold) *bridgeport.Spec { return h.Spec.(*bridgeport.Spec) }

// show reads a hold's port by its name; the index is 0 if there is none.
func (f *fixture) show(h hold.Hold) (p rtnl.PortOf) {
	f.Helper()
	l, err := f.conn.Link(specOf(h).Name)
	if err != nil || f.conn.Do(rtnl.GetPort(l.Index, &p)) != nil {
		return rtnl.PortOf{}
	}
	return p
}

// snapshot has the node. A pod that a check has left nothing in has no port on it.
func (f *fixture) snapshot() string { return nettest.Snapshot(f, f.node).String() }
