package rtnl_test

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A bridge reads as it was made and changed.
func TestBridge(t *testing.T) {
	bridges := []rtnl.Bridge{{Name: "br0", MAC: "0a:00:00:00:00:01", MTU: 1400, Group: 7}, {Name: "br1", MAC: "0a:00:00:00:00:02", MTU: 9000}}
	if filtersVLANs(t) {
		bridges = append(bridges, rtnl.Bridge{Name: "br2", MAC: "0a:00:00:00:00:03", MTU: 1500, VLANFiltering: true, PVID: 20})
	}
	c := open(t, nettest.Node(t))
	for _, want := range bridges {
		var got rtnl.Bridge
		must(t, c.Do(rtnl.AddBridge(want), rtnl.GetBridge(want.Name, &got)))
		want.Index = got.Index
		if !want.VLANFiltering {
			got.PVID = 0 // the kernel's own default
		}
		if got != want {
			t.Errorf("the bridge is %+v, not %+v", got, want)
		}
		if err := c.Do(rtnl.AddBridge(want)); !errors.Is(err, kernel.ErrExists) {
			t.Errorf("made again: %v", err)
		}
		want.Alias, want.Up, want.Promisc = "a bridge", true, true
		must(t, c.Do(rtnl.SetLink(want.Name, rtnl.Alias(want.Alias), rtnl.Up(), rtnl.Promisc()), rtnl.GetBridge(want.Name, &got)))
		if !want.VLANFiltering {
			got.PVID = 0
		}
		if got != want {
			t.Errorf("changed, the bridge is %+v, not %+v", got, want)
		}
	}
	all, err := c.Bridges()
	must(t, err)
	if len(all) != len(bridges) || !slices.Contains(all, index(t, c, "br1")) {
		t.Errorf("the bridges are %d, of %+v", all, bridges)
	}
	var lo rtnl.Bridge
	must(t, c.Do(rtnl.GetBridge("lo", &lo)))
	if lo != (rtnl.Bridge{}) {
		t.Errorf("lo is the bridge %+v", lo)
	}
	if err := c.Do(rtnl.GetBridge("none", &lo)); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("a bridge that is not there: %v", err)
	}
}

// bridge makes a bridge, and pods whose links are born as its ports.
func bridge(t testing.TB, b rtnl.Bridge, pods int) (c *rtnl.Conn, at int, ports []int, inside []*ns.Netns) {
	t.Helper()
	nettest.Need(t)
	c = open(t, nettest.Node(t))
	b.Name = "br0"
	must(t, c.Do(rtnl.AddBridge(b), rtnl.SetLink("br0", rtnl.Up())))
	at = index(t, c, "br0")
	for i := range pods {
		pod, host := nettest.Pod(t), rtnl.End{Name: "port" + string(rune('0'+i)), Master: at}
		mac := net.HardwareAddr{2, 0, 0, 0, 1, byte(i)}
		must(t, c.Do(rtnl.AddVeth(host, 0, rtnl.End{Name: "eth0", MAC: mac}, pod.Fd()), rtnl.SetLink(host.Name, rtnl.Up())))
		in := open(t, pod)
		must(t, in.Do(rtnl.SetLink("eth0", rtnl.Up())))
		nettest.Run(t, pod, "ip addr add 192.0.2."+string(rune('1'+i))+"/24 dev eth0")
		ports, inside = append(ports, index(t, c, host.Name)), append(inside, pod)
	}
	return c, at, ports, inside
}

// Pods whose links are born as a bridge's ports reach each other, unless both ports are isolated.
func TestPorts(t *testing.T) {
	c, at, ports, pods := bridge(t, rtnl.Bridge{}, 3)
	nettest.Ping(t, pods[0], addr("192.0.2.2"))
	isolated := rtnl.Port{Hairpin: true, Isolated: true}
	must(t, c.Do(rtnl.SetPort(ports[0], isolated), rtnl.SetPort(ports[1], isolated)))
	nettest.NoPing(t, pods[0], addr("192.0.2.2"))
	nettest.Ping(t, pods[0], addr("192.0.2.3"))

	all, err := c.Ports(at)
	must(t, err)
	if len(all) != len(ports) {
		t.Fatalf("the ports are %+v", all)
	}
	for i, want := range []rtnl.Port{isolated, isolated, {Learning: true}} {
		var got rtnl.PortOf
		must(t, c.Do(rtnl.GetPort(ports[i], &got)))
		if got.Port != want || got.Master != at || got.Index != ports[i] || !slices.Contains(all, got) {
			t.Errorf("port %d is %+v, not %+v", i, got, want)
		}
	}

	must(t, c.Do(rtnl.SetLinkAt(ports[2], rtnl.NoMaster())))
	nettest.NoPing(t, pods[0], addr("192.0.2.3"))
	var left rtnl.PortOf
	must(t, c.Do(rtnl.GetPort(ports[2], &left)))
	if left.Master != 0 {
		t.Errorf("a link that is no port any more is %+v", left)
	}
	if err := c.Do(rtnl.SetPort(ports[2], isolated)); !errors.Is(err, kernel.ErrUnsupported) && !errors.Is(err, kernel.ErrInvalid) {
		t.Errorf("setting a link that is no port: %v", err)
	}
	must(t, c.Do(rtnl.SetLinkAt(ports[2], rtnl.Master(at))))
	nettest.Ping(t, pods[0], addr("192.0.2.3"))
}

// A pair whose host end cannot become a port is not made.
func TestBornAsPort(t *testing.T) {
	nettest.Need(t)
	node := nettest.Node(t)
	c, pod := open(t, node), nettest.Pod(t)
	before := nettest.Snapshot(t, node).Only("link")
	for _, master := range []int{1, 9999} {
		if err := c.Do(rtnl.AddVeth(rtnl.End{Name: "port", Master: master}, 0, rtnl.End{Name: "eth0"}, pod.Fd())); err == nil {
			t.Errorf("a port of link %d is made", master)
		}
	}
	nettest.Same(t, before, nettest.Snapshot(t, node).Only("link"), "links")
	if there, err := pod.HasLink("eth0"); err != nil || there {
		t.Errorf("the pod has its end: %t, %v", there, err)
	}
}

// Where a bridge filters VLANs, pods of one VLAN reach each other, and no others. A kernel that cannot filter
// VLANs says so.
func TestPortVLANs(t *testing.T) {
	usual, access := rtnl.VLAN{ID: 1, PVID: true, Untagged: true}, rtnl.VLAN{ID: 20, PVID: true, Untagged: true}
	if !filtersVLANs(t) {
		c, _, ports, _ := bridge(t, rtnl.Bridge{}, 1)
		if err := c.Do(rtnl.SetPortVLAN(ports[0], access)); !errors.Is(err, kernel.ErrUnsupported) {
			t.Errorf("a kernel that cannot filter VLANs says %v", err)
		}
		return
	}
	c, _, ports, pods := bridge(t, rtnl.Bridge{VLANFiltering: true, PVID: 1}, 3)
	nettest.Ping(t, pods[0], addr("192.0.2.2"))
	must(t, c.Do(rtnl.SetPortVLAN(ports[0], access), rtnl.SetPortVLAN(ports[1], access), rtnl.DelPortVLAN(ports[0], usual)))
	nettest.Ping(t, pods[0], addr("192.0.2.2"))
	nettest.NoPing(t, pods[0], addr("192.0.2.3"))
	must(t, c.Do(rtnl.SetPortVLAN(ports[0], access)))
	if err := c.Do(rtnl.SetPortVLAN(ports[0], rtnl.VLAN{ID: 4095})); !errors.Is(err, kernel.ErrInvalid) {
		t.Errorf("no VLAN's ID: %v", err)
	}
}

// filtersVLANs reports whether the kernel can filter VLANs.
func filtersVLANs(t testing.TB) bool {
	t.Helper()
	nettest.Need(t)
	c := open(t, nettest.Node(t))
	err := c.Do(rtnl.AddBridge(rtnl.Bridge{Name: "br0", VLANFiltering: true}))
	if err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		t.Errorf("making a bridge that filters VLANs: %v", err)
	}
	return err == nil
}
