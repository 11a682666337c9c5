package bridgeport_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/stamp"
)

func TestKind(t *testing.T) {
	f := newFixture(t)
	var n atomic.Int32
	kindtest.Run(t, kindtest.Kind{
		Kind: f.kind,
		Spec: func(t testing.TB, owner hold.ID) hold.Spec {
			s := spec(owner, 1+int(n.Add(1))%250)
			s.Netns = nettest.Pod(f).Ref()
			return s
		},
		Example: &bridgeport.Spec{
			Name: "ptestabcdefghij", Alias: "bport testabcdef abcdefghij net/pod/net1 @7 =192.0.2.7", Ifname: "net1",
			Netns:  ns.Ref{Path: "/run/netns/a", Dev: 4, Ino: 4026532281, ID: 7},
			Bridge: "br0", Isolated: true, Hairpin: true, MTU: 1400, MAC: "02:00:00:00:00:01", HostMAC: "fe:00:00:00:00:01", Bare: true,
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24")},
			Routes:    []bridgeport.Route{{Dst: netip.MustParsePrefix("203.0.113.0/24"), Gateway: lan4}},
		},
		Snapshot: f.snapshot,
		Foreign:  takenIfname,
		Disguise: func(t testing.TB, h hold.Hold) {
			nettest.Run(t, f.node, "ip link set "+specOf(h).Name+" down name x"+specOf(h).Name[5:])
		},
	})
}

// takenIfname makes somebody else's interface in the pod, with the name that the pod's end wants.
func takenIfname(t testing.TB, h hold.Hold) (intact func() error) {
	pod, err := specOf(h).Netns.Open()
	must(t, err)
	t.Cleanup(func() { pod.Close() })
	nettest.Run(t, pod, "ip link add net1 type veth peer name other")
	before := nettest.Snapshot(t, pod)
	return func() error {
		if diff := before.Diff(nettest.Snapshot(t, pod)); diff != "" {
			return fmt.Errorf("the pod changed:\n%s", diff)
		}
		return nil
	}
}

// A port that somebody has renamed, or whose alias somebody has taken away, is still the owner's; another's link of its name is not.
func TestWhose(t *testing.T) {
	f := newFixture(t)
	for i, harm := range []string{
		"ip link set PORT down name other",
		"ip link set PORT alias mine",
		"ip link set PORT nomaster",
		"ip link property del dev PORT altname berth-PORT; ip link set PORT down name other",
		"ip link set PORT group 7",
	} {
		_, h := f.taken(1 + i)
		was := f.show(h).Index
		for line := range strings.SplitSeq(harm, "; ") {
			nettest.Run(t, f.node, strings.ReplaceAll(line, "PORT", specOf(h).Name))
		}
		if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || errors.Is(err, hold.ErrGone) {
			t.Errorf("%s: Verify says %v", harm, err)
		}
		f.take(h)
		if now := f.show(h); now.Index != was || now.Name != specOf(h).Name || now.Alias != specOf(h).Alias || !now.Locked || !now.Up {
			t.Errorf("%s: the port is %+v", harm, now)
		}
		must(t, f.verify(h))
		f.release(h)
		if left := f.snapshot(); strings.Contains(left, string(h.Owner)) || strings.Contains(left, "other") {
			t.Errorf("%s: the node has\n%s", harm, left)
		}
	}
	pod := nettest.Pod(t)
	h := f.hold(pod, 20)
	nettest.Run(t, f.node, "ip link add "+specOf(h).Name+" type veth peer name other")
	before := nettest.Snapshot(t, f.node)
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) || !errors.Is(err, hold.ErrUnused) {
		t.Errorf("Acquire says %v", err)
	}
	must(t, f.kind.Cut(t.Context(), h))
	f.release(h)
	nettest.Same(t, before, nettest.Snapshot(t, f.node), "the node")
}

// An agent that has just started finds a port of the former one that has neither of its names.
func TestRenamedBeforeRestart(t *testing.T) {
	f := newFixture(t)
	_, h := f.taken(1)
	nettest.Run(t, f.node, "ip link property del dev "+specOf(h).Name+" altname berth-"+specOf(h).Name)
	nettest.Run(t, f.node, "ip link set "+specOf(h).Name+" down name other")
	later := bridgeport.New(bridgeport.Options{Conn: f.conn, At: f.node, Instance: instance}).Kind()
	must(t, later.Release(t.Context(), []hold.Hold{h})...)
	if left := f.snapshot(); strings.Contains(left, "other") {
		t.Errorf("the node has\n%s", left)
	}
}

// A glance finds what is on a bridge, and a full look also what somebody has taken off its bridge. Another instance's ports are not found.
func TestFind(t *testing.T) {
	f := newFixture(t)
	_, h := f.taken(1)
	_, off := f.taken(2)
	nettest.Run(t, f.node, "ip link set "+specOf(off).Name+" nomaster")
	other := hold.NewID()
	nettest.Run(t, f.node, "ip link add foreign master br0 type veth peer name foreign2")
	must(t, nettest.Command(f.node, "ip", "link", "set", "foreign", "alias", stamp.PortAlias("otherabcde", other, keyOf(3), 1)).Run())
	for _, look := range []*hold.Look{nil, hold.Glance()} {
		found, err := f.kind.Find(t.Context(), look)
		must(t, err)
		want := 2
		if look.IsGlance() {
			want = 1
		}
		if len(found) != want {
			t.Errorf("glance %t: found are %v", look.IsGlance(), found)
		}
		for _, x := range found {
			if x.Owner != h.Owner && x.Owner != off.Owner || x.Spec.String() != "bridge port "+stamp.Port(instance, x.Owner) {
				t.Errorf("found is %s of %s", x.Spec, x.Owner)
			}
		}
	}
}

// A spec that cannot be is refused before anything is made.
func TestBadSpecs(t *testing.T) {
	f := newFixture(t)
	_, first := f.taken(200)
	before := nettest.Snapshot(t, f.node)
	for what, change := range map[string]func(*bridgeport.Spec){
		"no MAC":             func(s *bridgeport.Spec) { s.MAC = "" },
		"upper-case MAC":     func(s *bridgeport.Spec) { s.MAC = "0A:00:00:00:00:01" },
		"multicast MAC":      func(s *bridgeport.Spec) { s.MAC = "01:00:00:00:00:01" },
		"another pod's MAC":  func(s *bridgeport.Spec) { s.MAC = specOf(first).MAC },
		"the bridge's MAC":   func(s *bridgeport.Spec) { s.MAC = "0a:00:00:00:00:01" },
		"no host MAC":        func(s *bridgeport.Spec) { s.HostMAC = "" },
		"no bridge":          func(s *bridgeport.Spec) { s.Bridge = "" },
		"bridge not there":   func(s *bridgeport.Spec) { s.Bridge = "none" },
		"no bridge at all":   func(s *bridgeport.Spec) { s.Bridge = "uplink" },
		"MTU":                func(s *bridgeport.Spec) { s.MTU = 9000 },
		"no interface":       func(s *bridgeport.Spec) { s.Ifname = "" },
		"address":            func(s *bridgeport.Spec) { s.Addresses = []netip.Prefix{{}} },
		"route":              func(s *bridgeport.Spec) { s.Routes[0].Dst = netip.MustParsePrefix("192.0.2.1/24") },
		"another's alias":    func(s *bridgeport.Spec) { s.Alias = stamp.PortAlias(instance, hold.NewID(), keyOf(1), 1) },
		"another's name":     func(s *bridgeport.Spec) { s.Name = stamp.Port(instance, hold.NewID()) },
		"a host veth's":      func(s *bridgeport.Spec) { s.Alias = strings.Replace(s.Alias, "bport", "berth", 1) },
		"NUL in the alias":   func(s *bridgeport.Spec) { s.Alias += "\x00" },
		"the node's own":     func(s *bridgeport.Spec) { s.Netns = f.node.Ref() },
		"no such namespace":  func(s *bridgeport.Spec) { s.Netns.Path += "x" },
		"another one's path": func(s *bridgeport.Spec) { s.Netns.ID++ },
	} {
		pod := nettest.Pod(t)
		empty := nettest.Snapshot(t, pod)
		h := f.hold(pod, 1, change)
		if err := f.kind.Acquire(t.Context(), h); err == nil {
			t.Errorf("%s: it is taken", what)
		}
		nettest.Same(t, empty, nettest.Snapshot(t, pod), what+": the pod")
	}
	nettest.Same(t, before, nettest.Snapshot(t, f.node), "the node")
}
