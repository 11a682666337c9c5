package bridgeport

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// guard has the bridge treat a port as its spec says, and know the pod's MAC behind the port, in each VLAN of the port.
//
//	bridge link set dev NAME learning off locked on guard on isolated on|off hairpin on|off
//	bridge fdb add|replace MAC dev NAME master static sticky
func (p *Ports) guard(s plan, b rtnl.Bridge, l rtnl.PortOf) error {
	if l.Port != s.port() {
		if err := p.Conn.Do(rtnl.SetPort(l.Index, s.port()), rtnl.GetPort(l.Index, &l)); err != nil {
			return err
		}
		if !l.Locked {
			return kernel.As(kernel.ErrUnsupported, errors.New("the kernel cannot lock a bridge's port to the pod's MAC: want Linux 5.18 or newer"))
		}
	}
	err := p.Conn.Do(rtnl.SetPortMAC(l.Index, s.mac, false))
	if !errors.Is(err, kernel.ErrExists) {
		return err
	}
	// The kernel says so of the first VLAN in which the bridge knows the MAC already, and tells the bridge nothing of those behind it.
	known, err := p.inUse(s, b, l)
	if err != nil || !slices.ContainsFunc(known, func(k rtnl.PortMAC) bool { return !isOwn(k, l) }) {
		return err
	}
	vlans, err := p.vlans(l)
	if err == nil {
		known, err = p.known(s, l, append(vlans, 0)...) // all that SetPortMAC replaces
	}
	if err != nil {
		return err
	}
	for _, k := range known {
		if k.Static && k.Index != l.Index {
			return fmt.Errorf("MAC %s is that of the node's link %d%s, another port of bridge %s or the bridge itself: %w",
				s.MAC, k.Index, inVLAN(k.VLAN), s.Bridge, hold.ErrForeign)
		}
	}
	return p.Conn.Do(rtnl.SetPortMAC(l.Index, s.mac, true)) // the bridge has learnt it from frames, or the port has got VLANs since
}

// inUse returns what a bridge knows of a pod's MAC in each VLAN that the pod's frames may be of: all those of the port, or, if the bridge does not
// filter VLANs, none. A locked port drops the frames of a VLAN in which the bridge does not have the MAC behind it.
func (p *Ports) inUse(s plan, b rtnl.Bridge, l rtnl.PortOf) ([]rtnl.PortMAC, error) {
	if !b.VLANFiltering {
		return p.known(s, l, 0)
	}
	vlans, err := p.vlans(l)
	if err != nil {
		return nil, err
	}
	return p.known(s, l, vlans...)
}

// vlans lists the VLANs of a port. There are none if the kernel cannot filter VLANs.
func (p *Ports) vlans(l rtnl.PortOf) (ids []uint16, err error) {
	all, err := p.Conn.PortVLANs(l.Index)
	if err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return nil, err
	}
	for _, v := range all {
		ids = append(ids, v.ID)
	}
	return ids, nil
}

// known asks what a port's bridge knows of a pod's MAC in each of the VLANs; 0: outside of VLANs. Of one in which it knows nothing, the answer has the
// VLAN alone.
func (p *Ports) known(s plan, l rtnl.PortOf, vlans ...uint16) ([]rtnl.PortMAC, error) {
	known, questions := make([]rtnl.PortMAC, len(vlans)), make([]rtnl.Request, len(vlans))
	for i, v := range vlans {
		known[i].VLAN = v
		questions[i] = rtnl.GetPortMAC(l.Master, s.mac, v, &known[i])
	}
	for _, err := range p.Conn.Each(questions...) {
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return nil, err
		}
	}
	return known, nil
}

// isOwn reports whether a bridge has a MAC behind a port for good.
func isOwn(k rtnl.PortMAC, l rtnl.PortOf) bool { return k.Index == l.Index && k.Static && k.Sticky }

func inVLAN(id uint16) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprint(" in VLAN ", id)
}
