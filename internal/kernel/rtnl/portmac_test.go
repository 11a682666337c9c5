package rtnl_test

import (
	"errors"
	"net"
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
	if err := c.Do(rtnl.GetPortMAC(at, net.HardwareAddr{2, 0, 0, 0, 9, 9}, &known)); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("a MAC that the bridge has never seen: %v", err)
	}
	nettest.Ping(t, pods[0], addr("192.0.2.2"))
	must(t, c.Do(rtnl.GetPortMAC(at, mac, &known)))
	if known != (rtnl.PortMAC{MAC: mac.String(), Index: ports[0]}) {
		t.Errorf("learnt is %+v", known)
	}
	if err := c.Do(rtnl.SetPortMAC(ports[0], mac, false)); !errors.Is(err, kernel.ErrExists) {
		t.Errorf("a MAC that the bridge has learnt: %v", err)
	}
	must(t, c.Do(rtnl.SetPort(ports[0], guarded), rtnl.SetPortMAC(ports[0], mac, true)))
	must(t, c.Do(rtnl.GetPortMAC(at, mac, &known)))
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
	must(t, c.Do(rtnl.GetPortMAC(at, mac, &known)))
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
		if m.MAC == mac.String() {
			n++
		}
	}
	if n != 1 {
		t.Errorf("behind the port are %+v", all)
	}
	must(t, c.Do(rtnl.DelLinkAt(ports[0])))
	if err := c.Do(rtnl.GetPortMAC(at, mac, &known)); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("after the port has gone: %+v, %v", known, err)
	}
	must(t, c.Do(rtnl.SetLinkAt(ports[1], rtnl.NoMaster())))
	if err := c.Do(rtnl.SetPortMAC(ports[1], mac, false)); !errors.Is(err, kernel.ErrUnsupported) && !errors.Is(err, kernel.ErrInvalid) {
		t.Errorf("of a link that is no port: %v", err)
	}
}
