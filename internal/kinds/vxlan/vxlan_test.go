package vxlan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/kindtest"
	"github.com/berth-net/berth/internal/kinds/vxlan"
	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

const instance = "testabcdef"

func newTunnel(t testing.TB, at *ns.Netns) *vxlan.Tunnel {
	t.Helper()
	conn, err := rtnl.Open(at)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return vxlan.New(vxlan.Options{Conn: conn, Instance: instance})
}

func device(local string) *vxlan.Device {
	return &vxlan.Device{
		Instance: instance, VNI: 98, Port: 4789, Local: netip.MustParseAddr(local), MTU: 1400,
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.0"), netip.MustParseAddr("fd00:244:1::")},
	}
}

func TestDevice(t *testing.T) {
	for _, local := range []string{"192.0.2.1", "2001:db8::1"} {
		t.Run(local, func(t *testing.T) {
			at := nettest.Node(t)
			kindtest.Run(t, kindtest.Kind{
				Kind:     newTunnel(t, at).DeviceKind(),
				Spec:     func(testing.TB, hold.ID) hold.Spec { return device(local) },
				Alone:    true,
				Example:  device("192.0.2.1"),
				Snapshot: func() string { return nettest.Snapshot(t, at).String() },
				Foreign: func(t testing.TB, _ hold.Hold) func() error {
					nettest.Run(t, at, "ip link add berth-test type bridge")
					t.Cleanup(func() { nettest.Run(t, at, "ip link del berth-test") })
					return func() error {
						if !strings.Contains(nettest.Snapshot(t, at).String(), "berth-test") {
							return errors.New("it is gone")
						}
						return nil
					}
				},
				Disguise: func(t testing.TB, _ hold.Hold) {
					nettest.Run(t, at, "ip link set berth-test down")
					nettest.Run(t, at, "ip link set berth-test name other")
				},
				Lose: func(t testing.TB, _ hold.Hold) { nettest.Run(t, at, "ip link del berth-test") },
			})
		})
	}
}

// The device is put right after whatever others do to it, and its peers after whatever that takes away.
func TestMended(t *testing.T) {
	at := nettest.Node(t)
	tunnel := newTunnel(t, at)
	devices, peers := tunnel.DeviceKind(), tunnel.PeerKind()
	d := hold.Hold{Owner: hold.NewID(), Spec: device("192.0.2.1")}
	p := hold.Hold{Owner: hold.NewID(), Spec: peer("192.0.2.11")}
	must(t, devices.Acquire(t.Context(), d))
	must(t, peers.Acquire(t.Context(), p))
	for line, harms := range map[string]struct{ device, peer error }{
		"ip link set berth-test down":                                                               {hold.ErrChanged, nil},
		"ip link set berth-test mtu 1300":                                                           {hold.ErrChanged, nil},
		"ip link set berth-test address 0a:00:00:00:00:01":                                          {hold.ErrChanged, hold.ErrChanged},
		"ip link set berth-test alias nobody's":                                                     {hold.ErrChanged, nil},
		"ip addr del 10.244.1.0/32 dev berth-test":                                                  {hold.ErrChanged, nil},
		"ip addr add 10.1.2.3/32 dev berth-test":                                                    {hold.ErrChanged, nil},
		"ip link del berth-test":                                                                    {hold.ErrGone, hold.ErrGone},
		"ip neigh flush dev berth-test nud permanent":                                               {nil, hold.ErrChanged},
		"bridge fdb del " + vxlan.MACOf(netip.MustParseAddr("192.0.2.11")) + " dev berth-test self": {nil, hold.ErrChanged},
	} {
		nettest.Run(t, at, line)
		if got := devices.Verify(t.Context(), nil, []hold.Hold{d})[0]; !errors.Is(got, harms.device) {
			t.Errorf("%s: the device: %v, not %v", line, got, harms.device)
		}
		if got := peers.Verify(t.Context(), nil, []hold.Hold{p})[0]; harms.peer != nil && !errors.Is(got, harms.peer) {
			t.Errorf("%s: the peer: %v, not %v", line, got, harms.peer)
		}
		must(t, devices.Acquire(t.Context(), d))
		must(t, peers.Acquire(t.Context(), p))
		must(t, devices.Verify(t.Context(), nil, []hold.Hold{d})[0])
		must(t, peers.Verify(t.Context(), nil, []hold.Hold{p})[0])
	}
}

// A node comes to have another address, and other CIDRs: the device becomes that of the new hold, whose owner then gives back
// the former hold.
func TestChanged(t *testing.T) {
	at := nettest.Node(t)
	k := newTunnel(t, at).DeviceKind()
	was := hold.Hold{Owner: hold.NewID(), Spec: device("192.0.2.1")}
	must(t, k.Acquire(t.Context(), was))
	for _, change := range []func(*vxlan.Device){
		func(d *vxlan.Device) { d.MTU = 1350 },
		func(d *vxlan.Device) { d.Addresses = []netip.Addr{netip.MustParseAddr("10.244.7.0")} },
		func(d *vxlan.Device) { d.Local = netip.MustParseAddr("192.0.2.2") },
		func(d *vxlan.Device) { d.Local = netip.MustParseAddr("2001:db8::2") },
		func(d *vxlan.Device) { d.Port = 8472 },
	} {
		next := *was.Spec.(*vxlan.Device)
		change(&next)
		is := hold.Hold{Owner: was.Owner, Spec: &next}
		must(t, k.Acquire(t.Context(), is))
		must(t, k.Release(t.Context(), []hold.Hold{was})[0])
		must(t, k.Verify(t.Context(), nil, []hold.Hold{is})[0])
		was = is
	}
	must(t, k.Release(t.Context(), []hold.Hold{was})[0])
	if left := nettest.Snapshot(t, at).String(); strings.Contains(left, "berth-test") {
		t.Errorf("left:\n%s", left)
	}
}

func peer(node string) *vxlan.Peer {
	return &vxlan.Peer{Instance: instance, Node: netip.MustParseAddr(node)}
}

// A release takes what is of its node, also where IPv6 went meanwhile, and leaves a neighbour that somebody has put into its place.
func TestReleaseOfPeers(t *testing.T) {
	nettest.Need(t)
	at := nettest.Node(t)
	tunnel := newTunnel(t, at)
	k := tunnel.PeerKind()
	must(t, tunnel.DeviceKind().Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: device("192.0.2.1")}))
	empty := nettest.Snapshot(t, at)
	a, b := hold.Hold{Owner: hold.NewID(), Spec: peer("192.0.2.11")}, hold.Hold{Owner: hold.NewID(), Spec: peer("192.0.2.12")}
	must(t, k.Acquire(t.Context(), a))
	must(t, k.Acquire(t.Context(), b))
	nettest.Run(t, at, "ip neigh replace 192.0.2.11 lladdr 02:00:00:00:00:99 dev berth-test nud permanent")
	must(t, k.Release(t.Context(), []hold.Hold{a})[0])
	must(t, k.Verify(t.Context(), nil, []hold.Hold{b})[0])
	if !strings.Contains(nettest.Snapshot(t, at).String(), "02:00:00:00:00:99") {
		t.Error("somebody else's neighbour is gone")
	}
	nettest.Run(t, at, "ip neigh del 192.0.2.11 dev berth-test")
	nettest.Sysctl(t, at, "ipv6/conf/berth-test/disable_ipv6", "1")
	must(t, k.Release(t.Context(), []hold.Hold{b})[0])
	nettest.Same(t, empty.Only("neighbour"), nettest.Snapshot(t, at).Only("neighbour"), "neighbours")
	if found, err := k.Find(t.Context(), nil); err != nil || len(found) > 0 {
		t.Errorf("the device still sends to %v, %v", found, err)
	}
}

func TestPeer(t *testing.T) {
	for _, family := range []struct{ local, peer string }{{"192.0.2.1", "192.0.2.%d"}, {"2001:db8::1", "2001:db8::%d"}} {
		t.Run(family.local, func(t *testing.T) {
			at := nettest.Node(t)
			tunnel := newTunnel(t, at)
			must(t, tunnel.DeviceKind().Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: device(family.local)}))
			k := tunnel.PeerKind()
			k.Find = nil // an entry does not say who owns it: see TestFind
			var n atomic.Int32
			kindtest.Run(t, kindtest.Kind{
				Kind:     k,
				Spec:     func(testing.TB, hold.ID) hold.Spec { return peer(fmt.Sprintf(family.peer, 10+n.Add(1))) },
				Example:  peer("192.0.2.11"),
				Snapshot: func() string { return nettest.Snapshot(t, at).String() },
				Disguise: func(t testing.TB, h hold.Hold) {
					node := h.Spec.(*vxlan.Peer).Node
					nettest.Run(t, at, fmt.Sprintf("bridge fdb replace %s dev berth-test dst %s self permanent", vxlan.MACOf(node), node.Next()))
				},
			})
		})
	}
}

// Find finds the nodes of this instance's device.
func TestFind(t *testing.T) {
	at := nettest.Node(t)
	tunnel := newTunnel(t, at)
	k := tunnel.PeerKind()
	p := hold.Hold{Owner: hold.NewID(), Spec: peer("192.0.2.11")}
	if found, err := k.Find(t.Context(), nil); err != nil || len(found) > 0 {
		t.Errorf("without a device, found are %v, %v", found, err)
	}
	if err := k.Acquire(t.Context(), p); err == nil {
		t.Error("taken without a device")
	}
	must(t, k.Release(t.Context(), []hold.Hold{p})[0])
	must(t, tunnel.DeviceKind().Acquire(t.Context(), hold.Hold{Owner: hold.NewID(), Spec: device("192.0.2.1")}))
	must(t, k.Acquire(t.Context(), p))
	found, err := k.Find(t.Context(), nil)
	must(t, err)
	if len(found) != 1 || found[0].Spec.String() != p.Spec.String() {
		t.Fatalf("found are %v", found)
	}
	must(t, k.Release(t.Context(), found)[0])
	if err := k.Verify(t.Context(), nil, []hold.Hold{p})[0]; !errors.Is(err, hold.ErrGone) {
		t.Errorf("after the release: %v", err)
	}
}
