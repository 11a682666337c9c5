package rtnl_test

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/nettest"
)

// A locked port passes frames from the MAC that it was given alone, and no other port takes that MAC away.
func TestPortMAC(t *testing.T) {
	c, at, ports, pods := bridge(t, rtnl.Bridge{}, 2)
	mac, elsewhere := net.HardwareAddr{2, 0, 0, 0, 1, 0}, net.HardwareAddr{2, 0, 0, 0, 1, 1}
	guarded := rtnl.Port{Locked: true, Guarded: true}
	var known rtnl.PortMAC
	if err := c.Do(rtnl.GetPortMAC(at, net.HardwareAddr{2, 0, 0, 0, 9, 9}, 0, &known)); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("a MAC that the bridge has never seen: %v", err)
	}
	nettest.Ping(t, pods[0], addr("192.0.2.2"))
	must(t, c.Do(rtnl.GetPortMAC(at, mac, 0, &known)))
	if known != (rtnl.PortMAC{MAC: mac.String(), Index: ports[0]}) {
		t.Errorf("learnt is %+v", known)
	}
	if err := c.Do(rtnl.SetPortMAC(ports[0], mac, false)); !errors.Is(err, kernel.ErrExists) {
		t.Errorf("a MAC that the bridge has learnt: %v", err)
	}
	must(t, c.Do(rtnl.SetPort(ports[0], guarded), rtnl.SetPortMAC(ports[0], mac, true)))
	must(t, c.Do(rtnl.GetPortMAC(at, mac, 0, &known)))
	if known != (rtnl.PortMAC{MAC: mac.String(), Index: ports[0], Static: true, Sticky: true}) {
		t.Errorf("set is %+v", known)
	}
	var port rtnl.PortOf
	must(t, c.Do(rtnl.GetPort(ports[0], &port)))
	if port.Port != guarded {
		t.Errorf("the port is %+v", port.Port)
	}
	nettest.Ping(t, pods[0], addr("192.0.2.2"))
	nettest.Run(t, pods[1], "ip link set eth0 address "+mac.String()) // the other pod sends in the name of the first
	nettest.Run(t, pods[1], "ip neigh flush all")
	nettest.NoPing(t, pods[1], addr("192.0.2.1"))
	must(t, c.Do(rtnl.GetPortMAC(at, mac, 0, &known)))
	if known.Index != ports[0] {
		t.Errorf("a frame from elsewhere has moved it: %+v", known)
	}
	nettest.Run(t, pods[1], "ip link set eth0 address "+elsewhere.String())
	nettest.Run(t, pods[0], "ip link set eth0 address 02:00:00:00:01:77")
	nettest.NoPing(t, pods[0], addr("192.0.2.2"))

	all, err := c.PortMACs(ports[0])
	must(t, err)
	n := 0
	for _, m := range all {
		if m.MAC == mac.String() && m.VLAN == 0 {
			n++
		}
	}
	if n != 1 {
		t.Errorf("behind the port are %+v", all)
	}
	must(t, c.Do(rtnl.DelLinkAt(ports[0])))
	if err := c.Do(rtnl.GetPortMAC(at, mac, 0, &known)); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("after the port has gone: %+v, %v", known, err)
	}
	must(t, c.Do(rtnl.SetLinkAt(ports[1], rtnl.NoMaster())))
	if err := c.Do(rtnl.SetPortMAC(ports[1], mac, false)); !errors.Is(err, kernel.ErrUnsupported) && !errors.Is(err, kernel.ErrInvalid) {
		t.Errorf("of a link that is no port: %v", err)
	}
}

// A MAC is behind a port in each VLAN that the port has when the bridge is told, and in none that it gets later. What the bridge knows of it in one of
// these VLANs stops the kernel in the middle, unless it is to be replaced.
func TestPortMACByVLAN(t *testing.T) {
	c, at, ports, pods := bridge(t, rtnl.Bridge{VLANFiltering: filtersVLANs(t), PVID: 1}, 2)
	has, err := c.PortVLANs(ports[0])
	if !filtersVLANs(t) {
		if !errors.Is(err, kernel.ErrUnsupported) {
			t.Errorf("a kernel that cannot filter VLANs says %v", err)
		}
		return
	}
	must(t, err)
	if !slices.Equal(has, []rtnl.VLAN{{ID: 1, PVID: true, Untagged: true}}) {
		t.Errorf("the port's VLANs are %v", has)
	}
	if _, err := c.PortVLANs(at + 100); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("of no link: %v", err)
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 1, 0x77}
	known := func(vlan uint16) (p rtnl.PortMAC) {
		t.Helper()
		if err := c.Do(rtnl.GetPortMAC(at, mac, vlan, &p)); err != nil && !errors.Is(err, kernel.ErrNotFound) {
			t.Errorf("VLAN %d: %v", vlan, err)
		}
		return p
	}
	own := func(vlan uint16) rtnl.PortMAC {
		return rtnl.PortMAC{MAC: mac.String(), VLAN: vlan, Index: ports[0], Static: true, Sticky: true}
	}
	nettest.Run(t, pods[1], "ip link set eth0 address "+mac.String())
	nettest.Ping(t, pods[1], addr("192.0.2.1"))
	if got := known(1); got != (rtnl.PortMAC{MAC: mac.String(), VLAN: 1, Index: ports[1]}) {
		t.Errorf("learnt is %+v", got)
	}
	if err := c.Do(rtnl.SetPortMAC(ports[0], mac, false)); !errors.Is(err, kernel.ErrExists) {
		t.Errorf("a MAC that the bridge has learnt in a VLAN: %v", err)
	}
	if got := known(0); got != own(0) {
		t.Errorf("outside of VLANs is %+v", got)
	}
	must(t, c.Do(rtnl.SetPortMAC(ports[0], mac, true), rtnl.SetPortVLAN(ports[0], rtnl.VLAN{ID: 20}), rtnl.SetPortVLAN(ports[0], rtnl.VLAN{ID: 21})))
	for vlan, want := range map[uint16]rtnl.PortMAC{0: own(0), 1: own(1), 20: {}} {
		if got := known(vlan); got != want {
			t.Errorf("in VLAN %d is %+v, not %+v", vlan, got, want)
		}
	}
	has, err = c.PortVLANs(ports[0])
	must(t, err)
	if !slices.Equal(has, []rtnl.VLAN{{ID: 1, PVID: true, Untagged: true}, {ID: 20}, {ID: 21}}) {
		t.Errorf("the port's VLANs are %v", has)
	}
}
