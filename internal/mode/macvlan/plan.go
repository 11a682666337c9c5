package macvlan

import (
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/link"
	kind "github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/mode"
)

// passthru is the macvlanMode in which a macvlan has its master's MAC.
const passthru = "passthru"

// spec returns the macvlan of an attachment.
func spec(id hold.ID, instance string, r attachment.Record, c *netconf.Conf, g mode.Given) *kind.Spec {
	s := &kind.Spec{
		Alias:     kind.Alias(instance, id, r.Ifname, r.Key.String()),
		Netns:     r.Netns,
		Ifname:    r.Ifname,
		Parent:    c.Native.Master,
		Mode:      c.Native.MacvlanMode,
		MTU:       c.MTU,
		Addresses: g.Addresses,
		Routes:    g.Routes,
	}
	switch {
	case s.Mode == passthru:
	case c.MAC != nil:
		s.MAC = net.HardwareAddr(c.MAC).String()
	case len(g.Addresses) > 0:
		s.MAC = mode.SegmentMAC(g.Addrs())
	default: // nobody knows the addresses yet
		s.MAC, _ = link.MACs(id)
	}
	return s
}

// In returns an attachment's owner whose macvlan is in another network namespace, or in the same one by another path. o stays as it is. The
// macvlan keeps its name, which its mark has.
func (*Macvlan) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = o.Clone()
	for i, h := range o.Holds {
		switch s := h.Spec.(type) {
		case *kind.Spec:
			there := *s
			there.Netns = netns
			o.Holds[i].Spec = &there
		case *kind.IPs:
			there := *s
			there.Netns = netns
			o.Holds[i].Spec = &there
		}
	}
	return mode.LeadIn(netns, ifname, o)
}

// Result returns the CNI result of an attachment: a function of its record.
func (*Macvlan) Result(o hold.Owner, r attachment.Record) (*types100.Result, error) {
	_, s, err := specOf(o)
	if err != nil {
		return nil, err
	}
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: s.Ifname, Mac: s.MAC, Mtu: s.MTU, Sandbox: r.Netns.Path}},
		DNS:        r.DNS,
	}
	mode.AddSegment(res, s.Addresses, s.Routes, 0)
	return res, nil
}
