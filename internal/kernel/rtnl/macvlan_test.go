package rtnl_test

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// parentLink makes a link that can have macvlans, in a namespace of its own.
func parentLink(t testing.TB) (node *ns.Netns, c *rtnl.Conn, index int) {
	t.Helper()
	nettest.Need(t)
	node = nettest.Node(t)
	c = open(t, node)
	var l rtnl.Link
	must(t, c.Do(
		rtnl.AddVeth(rtnl.End{Name: "uplink"}, 0, rtnl.End{Name: "switch"}, nettest.Pod(t).Fd()),
		rtnl.SetLink("uplink", rtnl.Up()), rtnl.GetLink("uplink", &l)))
	return node, c, l.Index
}

// A macvlan is born in the pod, in its group and without an alias, and reads as it was made.
func TestMacvlan(t *testing.T) {
	for _, mode := range []rtnl.MacvlanMode{rtnl.MacvlanPrivate, rtnl.MacvlanVEPA, rtnl.MacvlanBridge, rtnl.MacvlanPassthru} {
		t.Run(mode.String(), func(t *testing.T) {
			node, c, parent := parentLink(t)
			pod := nettest.Pod(t)
			inside := open(t, pod)
			m := rtnl.NewMacvlan{Name: "net1", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 5}, MTU: 1400, Parent: parent, Mode: mode}
			must(t, c.Do(rtnl.AddMacvlan(m, 1<<30, pod.Fd())))
			if err := c.Do(rtnl.AddMacvlan(m, 1<<30, pod.Fd())); !errors.Is(err, kernel.ErrExists) {
				t.Errorf("made again: %v", err)
			}
			var got, byIndex rtnl.Macvlan
			must(t, inside.Do(rtnl.GetMacvlan("net1", &got)))
			must(t, inside.Do(rtnl.GetMacvlanAt(got.Index, &byIndex)))
			want := rtnl.Macvlan{Mode: mode, Link: rtnl.Link{
				Index: got.Index, Name: "net1", MAC: m.MAC.String(), MTU: m.MTU, Group: 1 << 30, Peer: parent, Conf: got.Conf,
			}}
			must(t, inside.Do(rtnl.NetnsID(node.Fd(), &want.PeerNetns)))
			if mode == rtnl.MacvlanPassthru {
				var l rtnl.Link
				must(t, c.Do(rtnl.GetLink("uplink", &l)))
				want.MAC = l.MAC
			}
			if got != want || byIndex != want {
				t.Errorf("it is %+v, and by its index %+v, not %+v", got, byIndex, want)
			}
			n := 0
			must(t, inside.EachMacvlan(func(m rtnl.Macvlan) error {
				if n++; m != want {
					t.Errorf("the list has %+v", m)
				}
				return nil
			}))
			if n != 1 {
				t.Errorf("the list has %d macvlans", n)
			}
			must(t, c.EachMacvlan(func(m rtnl.Macvlan) error { t.Errorf("the parent's namespace has %+v", m); return nil }))
		})
	}
}

// A macvlan's mode changes, but neither to passthru nor from there.
func TestMacvlanMode(t *testing.T) {
	_, c, parent := parentLink(t)
	pod := nettest.Pod(t)
	inside := open(t, pod)
	must(t, c.Do(rtnl.AddMacvlan(rtnl.NewMacvlan{Name: "net1", Parent: parent, Mode: rtnl.MacvlanBridge}, 0, pod.Fd())))
	var m rtnl.Macvlan
	must(t, inside.Do(rtnl.GetMacvlan("net1", &m)))
	must(t, inside.Do(rtnl.SetMacvlanMode(m.Index, rtnl.MacvlanVEPA), rtnl.GetMacvlan("net1", &m)))
	if m.Mode != rtnl.MacvlanVEPA {
		t.Errorf("the mode is %s", m.Mode)
	}
	if err := inside.Do(rtnl.SetMacvlanMode(m.Index, rtnl.MacvlanPassthru)); !errors.Is(err, kernel.ErrInvalid) {
		t.Errorf("to passthru: %v", err)
	}
	must(t, inside.Do(rtnl.GetMacvlan("lo", &m)))
	if m.Mode != 0 {
		t.Errorf("lo is a macvlan of mode %s", m.Mode)
	}
}

// What the kernel refuses, and what becomes of macvlans when their parent goes.
func TestMacvlanParent(t *testing.T) {
	node, c, parent := parentLink(t)
	pod := nettest.Pod(t)
	inside := open(t, pod)
	add := func(name string, parent, mtu int, mode rtnl.MacvlanMode) error {
		m := rtnl.NewMacvlan{Name: name, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 5}, MTU: mtu, Parent: parent, Mode: mode}
		return c.Do(rtnl.AddMacvlan(m, 0, pod.Fd()))
	}
	must(t, add("net1", parent, 0, rtnl.MacvlanBridge))
	nettest.Run(t, node, "ip link add br0 type bridge")
	nettest.Run(t, node, "ip link add port type veth peer name other")
	nettest.Run(t, node, "ip link set port master br0")
	port, bridge := index(t, c, "port"), index(t, c, "br0")
	for _, refused := range []struct {
		what string
		err  error
		want error
	}{
		{"no parent", add("net2", 9999, 0, rtnl.MacvlanBridge), kernel.ErrNotFound},
		{"lo", add("net2", 1, 0, rtnl.MacvlanBridge), kernel.ErrInvalid},
		{"a great MTU", add("net2", parent, 1600, rtnl.MacvlanBridge), kernel.ErrInvalid},
		{"passthru beside others", add("net2", parent, 0, rtnl.MacvlanPassthru), kernel.ErrInvalid},
		{"a port of a bridge", add("net2", port, 0, rtnl.MacvlanBridge), kernel.ErrBusy},
		{"a bridge", add("net2", bridge, 0, rtnl.MacvlanBridge), nil},
		{"the same MAC", add("net3", parent, 0, rtnl.MacvlanBridge), nil},
		{"up with the same MAC", inside.Do(rtnl.SetLink("net1", rtnl.Up()), rtnl.SetLink("net3", rtnl.Up())), kernel.ErrBusy},
	} {
		if !errors.Is(refused.err, refused.want) {
			t.Errorf("%s: %v, not %v", refused.what, refused.err, refused.want)
		}
	}

	// A macvlan of a macvlan is its parent's, and outlives it.
	nettest.Run(t, node, "ip link add link uplink name upper type macvlan mode bridge")
	must(t, add("net4", index(t, c, "upper"), 0, rtnl.MacvlanBridge))
	nettest.Run(t, node, "ip link del upper")
	var m rtnl.Macvlan
	must(t, inside.Do(rtnl.GetMacvlan("net4", &m)))
	if m.Peer != parent {
		t.Errorf("the parent of a macvlan's macvlan is %d, not %d", m.Peer, parent)
	}

	// The kernel lowers a macvlan's MTU with its parent's, and does not raise it again.
	nettest.Run(t, node, "ip link set uplink mtu 1300")
	nettest.Run(t, node, "ip link set uplink mtu 1500")
	if must(t, inside.Do(rtnl.GetMacvlan("net1", &m))); m.MTU != 1300 {
		t.Errorf("the MTU is %d", m.MTU)
	}

	// Macvlans stay with a parent that moves to another namespace.
	elsewhere := nettest.Node(t)
	nettest.Run(t, node, fmt.Sprintf("ip link set uplink netns %s", elsewhere.Ref().Path))
	must(t, inside.Do(rtnl.GetMacvlan("net1", &m)))
	var at int
	must(t, inside.Do(rtnl.NetnsID(elsewhere.Fd(), &at)))
	if m.PeerNetns != at {
		t.Errorf("the parent is in %d, not %d", m.PeerNetns, at)
	}
	must(t, open(t, elsewhere).Do(rtnl.DelLink("uplink")))
	for _, name := range []string{"net1", "net3", "net4"} {
		if err := inside.Do(rtnl.GetMacvlan(name, &m)); !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("%s has no parent any more: %v", name, err)
		}
	}
}

func index(t testing.TB, c *rtnl.Conn, name string) int {
	t.Helper()
	var l rtnl.Link
	must(t, c.Do(rtnl.GetLink(name, &l)))
	return l.Index
}

// The end of a namespace deletes the macvlans in it: none comes to the parent's namespace.
func TestMacvlanEndsWithItsNamespace(t *testing.T) {
	node, c, parent := parentLink(t)
	pod, other := nettest.Pod(t), nettest.Pod(t)
	for _, at := range []*ns.Netns{pod, other} {
		must(t, c.Do(rtnl.AddMacvlan(rtnl.NewMacvlan{Name: "net1", Parent: parent, Mode: rtnl.MacvlanBridge}, 0, at.Fd())))
	}
	before := nettest.Snapshot(t, node).Only("link")
	nettest.Delete(t, pod)
	// The kernel ends namespaces one after the other: when passthru is possible, both macvlans are gone.
	must(t, open(t, other).Do(rtnl.DelLink("net1")))
	third := nettest.Pod(t)
	nettest.Eventually(t, "the parent has no macvlan", func() bool {
		return c.Do(rtnl.AddMacvlan(rtnl.NewMacvlan{Name: "net1", Parent: parent, Mode: rtnl.MacvlanPassthru}, 0, third.Fd())) == nil
	})
	nettest.Same(t, before, nettest.Snapshot(t, node).Only("link"), "links of the node")
}
