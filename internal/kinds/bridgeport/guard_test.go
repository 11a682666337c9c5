package bridgeport_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// filtersVLANs reports whether the kernel can filter VLANs. If not, no bridge has any, and there is nothing to test.
func (f *fixture) filtersVLANs() bool {
	f.Helper()
	err := f.conn.Do(rtnl.AddBridge(rtnl.Bridge{Name: "filters", VLANFiltering: true}))
	if errors.Is(err, kernel.ErrUnsupported) {
		f.Log("this kernel cannot filter VLANs")
		return false
	}
	must(f, err, f.conn.Do(rtnl.DelLink("filters")))
	return true
}

// do runs commands in the node.
func (f *fixture) do(lines ...string) {
	f.Helper()
	for _, line := range lines {
		nettest.Run(f, f.node, line)
	}
}

// vlan gives links of the node another VLAN of frames without a tag.
func (f *fixture) vlan(id uint16, names ...string) {
	f.Helper()
	for _, name := range names {
		l, err := f.conn.Link(name)
		must(f, err, f.conn.Do(rtnl.SetPortVLAN(l.Index, rtnl.VLAN{ID: id, PVID: true, Untagged: true})))
	}
}

// A bridge that filters VLANs passes a pod's frames in the VLAN of its port, whatever the bridge has learnt there of the pod's MAC before, and whatever
// others change of the VLANs: Verify sees it, and Acquire mends it.
func TestVLANs(t *testing.T) {
	const mac = "02:00:00:00:01:01"
	const on, learn = "ip link set br0 type bridge vlan_filtering 1", "bridge fdb add " + mac + " dev uplink master dynamic vlan 1"
	for what, c := range map[string]struct {
		before, after func(*fixture, hold.Hold)
		want          string // of Verify, behind after
	}{
		"learnt elsewhere": {before: func(f *fixture, _ hold.Hold) { f.do(on, learn) }},
		"learnt elsewhere, and the bridge filters later": {
			before: func(f *fixture, _ hold.Hold) { f.do(learn) },
			after:  func(f *fixture, _ hold.Hold) { f.do(on) },
			want:   "does not know " + mac + " behind the port in VLAN 1",
		},
		"another VLAN later": {
			before: func(f *fixture, _ hold.Hold) { f.do(on) },
			after:  func(f *fixture, h hold.Hold) { f.vlan(20, specOf(h).Name, "uplink") },
			want:   "does not know " + mac + " behind the port in VLAN 20",
		},
		"taken away in a VLAN": {
			before: func(f *fixture, _ hold.Hold) { f.do(on) },
			after: func(f *fixture, h hold.Hold) {
				f.do("bridge fdb del " + mac + " dev " + specOf(h).Name + " master vlan 1")
			},
			want: "does not know " + mac + " behind the port in VLAN 1",
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			if !f.filtersVLANs() {
				return
			}
			pod := nettest.Pod(t)
			h := f.hold(pod, 1)
			c.before(f, h)
			f.take(h)
			must(t, f.verify(h), f.all.VerifyPod(t.Context(), h))
			if c.after != nil {
				nettest.Ping(t, pod, lan4)
				c.after(f, h)
				if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Verify says %v", err)
				}
				f.take(h)
				must(t, f.verify(h))
			}
			nettest.Ping(t, pod, lan4)
		})
	}
}

// What somebody has set of a MAC in a VLAN of the port stays.
func TestForeignInVLAN(t *testing.T) {
	f := newFixture(t)
	if !f.filtersVLANs() {
		return
	}
	const mac = "02:00:00:00:01:01"
	f.do("ip link set br0 type bridge vlan_filtering 1", "bridge fdb add "+mac+" dev uplink master static vlan 1")
	before := f.snapshot()
	h := f.hold(nettest.Pod(t), 1)
	if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, hold.ErrForeign) || !strings.Contains(err.Error(), "in VLAN 1") {
		t.Errorf("Acquire says %v", err)
	}
	if now := f.snapshot(); now != before {
		t.Errorf("the node had\n%s\nand has\n%s", before, now)
	}
	out, err := nettest.Command(f.node, "bridge", "fdb", "get", mac, "br", "br0", "vlan", "1").Output()
	if err != nil || !strings.Contains(string(out), "dev uplink") {
		t.Errorf("the bridge knows %s: %v", out, err)
	}
}

// A port whose bridge has gone leads to the node itself: it is down until the bridge is back.
func TestBridgeGoes(t *testing.T) {
	f := newFixture(t)
	pod, h := f.taken(1)
	nettest.Ping(t, pod, lan4)
	f.do("ip link del br0")
	if p := f.show(h); !p.Up || p.Link.Master != 0 {
		t.Fatalf("the kernel leaves the port %+v", p)
	}
	for range 2 { // sweeps
		if err := f.verify(h); !errors.Is(err, hold.ErrChanged) || !strings.Contains(err.Error(), "no bridge br0") {
			t.Errorf("Verify says %v", err)
		}
		if err := f.kind.Acquire(t.Context(), h); !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("Acquire says %v", err)
		}
		if p := f.show(h); p.Index == 0 || p.Up {
			t.Errorf("the port is %+v", p)
		}
	}
	f.do("ip link add br0 type bridge", "ip link set uplink master br0", "ip link set br0 up")
	f.take(h)
	must(t, f.verify(h))
	nettest.Ping(t, pod, lan4)
}
