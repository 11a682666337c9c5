package macvlan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/nettest"
)

func TestKind(t *testing.T) {
	f := newFixture(t)
	k := f.kind
	k.Find = nil // it does not enter pods: see TestFind
	var n atomic.Int32
	kindtest.Run(t, kindtest.Kind{
		Kind: k,
		Spec: func(t testing.TB, owner hold.ID) hold.Spec {
			s := spec(owner, 1+int(n.Add(1))%250) // the checks run one after the other
			s.Netns = f.pod().Ref()
			return s
		},
		Example: &macvlan.Spec{
			Alias: "berth-macvlan testabcdef abcdefghij net1 default/pod/net1", Ifname: "net1",
			Netns:  ns.Ref{Path: "/run/netns/a", Dev: 4, Ino: 4026532281, ID: 7},
			Parent: "eth0", Mode: "bridge", MTU: 1400, MAC: "02:00:00:00:00:01",
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("2001:db8::7/64")},
			Routes:    []macvlan.Route{{Dst: netip.MustParsePrefix("203.0.113.0/24"), Gateway: lan4}},
			Bare:      true,
		},
		Snapshot: f.snapshot,
		Foreign:  takenIfname,
		Disguise: func(t testing.TB, h hold.Hold) {
			pod, err := specOf(h).Netns.Open()
			must(t, err)
			defer pod.Close()
			nettest.Run(t, pod, "ip link set net1 name other")
		},
	})
}

// takenIfname makes somebody else's interface in the pod, with the name that the macvlan wants.
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

// Somebody else's macvlan on the same parent, and another owner's, are foreign, whatever name ours has.
func TestForeign(t *testing.T) {
	f := newFixture(t)
	for i, whose := range []string{"nobody's", macvlan.Alias(instance, hold.NewID(), "net1", "another")} {
		pod := f.pod()
		h := f.hold(pod, 10+i)
		nettest.Run(t, f.node, fmt.Sprintf("ip link add link uplink name net1 netns %s type macvlan mode bridge", pod.Ref().Path))
		must(t, nettest.Command(pod, "ip", "link", "set", "net1", "alias", whose).Run())
		before := nettest.Snapshot(t, pod)
		if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) || !errors.Is(err, hold.ErrUnused) {
			t.Errorf("Acquire says %v", err)
		}
		if err := f.verify(h); !errors.Is(err, hold.ErrGone) {
			t.Errorf("Verify says %v", err)
		}
		must(t, f.kind.Cut(t.Context(), h))
		f.release(h)
		nettest.Same(t, before, nettest.Snapshot(t, pod), "the pod")
	}
	// A macvlan of ours is renamed, and another interface has its name.
	pod, h := f.taken(20)
	nettest.Run(t, pod, "ip link set net1 name mine")
	nettest.Run(t, pod, "ip link add net1 type veth peer name other")
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) {
		t.Errorf("Acquire says %v", err)
	}
	f.release(h)
	for name, want := range map[string]bool{"mine": false, "net1": true} {
		if there, err := pod.HasLink(name); err != nil || there != want {
			t.Errorf("after the release, link %s is there: %t, %v", name, there, err)
		}
	}
}

// Find finds the instance's macvlans that somebody has moved to the node's namespace, and no others.
func TestFind(t *testing.T) {
	f := newFixture(t)
	pod, h := f.taken(1)
	if found, err := f.kind.Find(t.Context(), nil); err != nil || len(found) > 0 {
		t.Errorf("found are %v, %v", found, err)
	}
	nettest.Run(t, pod, "ip link set net1 netns "+f.node.Ref().Path)
	nettest.Run(t, f.node, "ip link add link uplink name other type macvlan mode bridge")
	nettest.Run(t, f.node, "ip link set net1 name stray")
	found, err := f.kind.Find(t.Context(), nil)
	must(t, err)
	if len(found) != 1 || found[0].Owner != h.Owner || found[0].Spec.String() != h.Spec.String() {
		t.Fatalf("found are %v", found)
	}
	f.release(h) // it is not there
	f.release(found[0])
	for name, want := range map[string]bool{"stray": false, "other": true} {
		if there, err := f.node.HasLink(name); err != nil || there != want {
			t.Errorf("the node has %s: %t, %v", name, there, err)
		}
	}
}

// A spec that cannot be is refused before anything is made.
func TestBadSpecs(t *testing.T) {
	f := newFixture(t)
	before := nettest.Snapshot(t, f.node)
	for what, change := range map[string]func(*macvlan.Spec){
		"mode":               func(s *macvlan.Spec) { s.Mode = "source" },
		"no MAC":             func(s *macvlan.Spec) { s.MAC = "" },
		"passthru with MAC":  func(s *macvlan.Spec) { s.Mode = "passthru" },
		"upper-case MAC":     func(s *macvlan.Spec) { s.MAC = "0A:00:00:00:00:01" },
		"multicast MAC":      func(s *macvlan.Spec) { s.MAC = "01:00:00:00:00:01" },
		"long MAC":           func(s *macvlan.Spec) { s.MAC = "02:00:00:00:00:01:02:03" },
		"no parent":          func(s *macvlan.Spec) { s.Parent = "" },
		"parent not there":   func(s *macvlan.Spec) { s.Parent = "none" },
		"MTU":                func(s *macvlan.Spec) { s.MTU = 9000 },
		"address":            func(s *macvlan.Spec) { s.Addresses = []netip.Prefix{{}} },
		"route":              func(s *macvlan.Spec) { s.Routes[0].Dst = netip.MustParsePrefix("192.0.2.1/24") },
		"gateway's family":   func(s *macvlan.Spec) { s.Routes[1].Gateway = lan6 },
		"another's alias":    func(s *macvlan.Spec) { s.Alias = macvlan.Alias(instance, hold.NewID(), "net1", "x") },
		"another interface":  func(s *macvlan.Spec) { s.Ifname = "net2" },
		"the node's own":     func(s *macvlan.Spec) { s.Netns = f.node.Ref() },
		"alias of no form":   func(s *macvlan.Spec) { s.Alias = "mine" },
		"NUL in the alias":   func(s *macvlan.Spec) { s.Alias += "\x00" },
		"no such namespace":  func(s *macvlan.Spec) { s.Netns.Path += "x" },
		"another one's path": func(s *macvlan.Spec) { s.Netns.ID++ },
	} {
		pod := f.pod()
		empty := nettest.Snapshot(t, pod)
		h := f.hold(pod, 1, change)
		if err := f.kind.Acquire(t.Context(), h); err == nil {
			t.Errorf("%s: it is taken", what)
		}
		nettest.Same(t, empty, nettest.Snapshot(t, pod), what+": the pod")
	}
	nettest.Same(t, before, nettest.Snapshot(t, f.node), "the node")
	if a := macvlan.Alias(instance, hold.NewID(), "net1", fmt.Sprintf("%300d", 1)); len(a) != 255 {
		t.Errorf("an alias has %d bytes", len(a))
	}
}
