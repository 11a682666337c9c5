package bridge

import (
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	kind "github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/stamp"
)

// plan returns the owner that an attachment with these addresses and routes will be.
func (m *Bridge) plan(id hold.ID, r attachment.Record, c *netconf.Conf, g mode.Given) hold.Owner {
	o := mode.SegmentOwner(id, r, spec(id, m.Instance, r, c, g), g.Addrs())
	mode.Lead(&o, r, c)
	return o
}

// spec returns the port of an attachment.
func spec(id hold.ID, instance string, r attachment.Record, c *netconf.Conf, g mode.Given) *kind.Spec {
	s := &kind.Spec{
		Name:      stamp.Port(instance, id),
		Alias:     stamp.PortAlias(instance, id, r.Key, r.Started, texts(g.Addrs())...),
		Netns:     r.Netns,
		Ifname:    r.Ifname,
		Bridge:    c.Native.Bridge,
		Isolated:  c.Native.Isolated,
		Hairpin:   c.Native.Hairpin,
		MTU:       c.MTU,
		HostMAC:   kind.HostMAC(id),
		Addresses: g.Addresses,
		Routes:    g.Routes,
	}
	switch {
	case c.MAC != nil:
		s.MAC = net.HardwareAddr(c.MAC).String()
	case len(g.Addresses) > 0:
		s.MAC = mode.SegmentMAC(g.Addrs())
	default: // nobody knows the addresses yet
		s.MAC, _ = link.MACs(id)
	}
	return s
}

// texts returns addresses as an alias has them.
func texts(addrs []netip.Addr) []string {
	all := make([]string, len(addrs))
	for i, a := range addrs {
		all[i] = a.String()
	}
	return all
}

// In returns an attachment's owner whose interface is in another network namespace, or in the same one by another path. o stays as it is.
func (*Bridge) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = o.Clone()
	for i, h := range o.Holds {
		switch s := h.Spec.(type) {
		case *kind.Spec:
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		case *kind.IPs:
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		}
	}
	return mode.LeadIn(netns, ifname, o)
}

// Result returns the CNI result of an attachment: a function of its record.
func (*Bridge) Result(o hold.Owner, r attachment.Record) (*types100.Result, error) {
	_, s, err := specOf(o)
	if err != nil {
		return nil, err
	}
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: s.Name, Mac: s.HostMAC},
			{Name: s.Ifname, Mac: s.MAC, Mtu: s.MTU, Sandbox: r.Netns.Path},
		},
		DNS: r.DNS,
	}
	mode.AddSegment(res, s.Addresses, s.Routes, 1)
	return res, nil
}
