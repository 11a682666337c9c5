package macvlan

import (
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/flows"
	kind "github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/mode"
)

// passthru is the macvlanMode in which a macvlan has its master's MAC.
const passthru = "passthru"

// plan returns the owner that an attachment will be. addrs are the addresses claimed for it, of a pool on a segment; nil: the pool has lost
// its segment since Fit.
func plan(id hold.ID, instance string, r attachment.Record, c *netconf.Conf, addrs []netip.Addr, on *ipam.Segment) (hold.Owner, error) {
	if on == nil {
		on = &ipam.Segment{}
	}
	prefixes, ok := mode.OnSegment(on, addrs)
	if !ok {
		return hold.Owner{}, cni.Errorf(cni.CodeTryAgain, "the pool has changed", "pool %s had another segment a moment ago", r.Pool)
	}
	s := &kind.Spec{
		Alias:     kind.Alias(instance, id, r.Ifname, r.Key.String()),
		Netns:     r.Netns,
		Ifname:    r.Ifname,
		Parent:    c.Native.Master,
		Mode:      c.Native.MacvlanMode,
		MTU:       c.MTU,
		Addresses: prefixes,
	}
	switch {
	case s.Mode == passthru:
	case c.MAC != nil:
		s.MAC = net.HardwareAddr(c.MAC).String()
	default:
		s.MAC = mode.SegmentMAC(addrs)
	}
	s.Routes = defaults(on, addrs)
	return owner(id, r, s, addrs), nil
}

// defaults returns a pod's default routes by the gateways of a segment.
func defaults(on *ipam.Segment, addrs []netip.Addr) (all []kind.Route) {
	for _, g := range mode.Gateways(on, addrs) {
		all = append(all, kind.Route{Dst: mode.Everything(g), Gateway: g})
	}
	return all
}

// owner returns an attachment's owner. When it ends, the agent makes the kernel forget the connections of its addresses.
func owner(id hold.ID, r attachment.Record, s *kind.Spec, addrs []netip.Addr) hold.Owner {
	o := hold.Owner{ID: id, Meta: r.Encode()}
	for _, a := range addrs {
		o.Names = append(o.Names, ipam.Name(a))
	}
	if len(addrs) > 0 {
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &flows.Spec{Addresses: addrs}})
	}
	o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: s})
	return o
}

// In returns an attachment's owner whose macvlan is in another network namespace, or in the same one by another path. o stays as it is. The
// macvlan keeps its name, which its mark has.
func (*Macvlan) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = o.Clone()
	for i, h := range o.Holds {
		if s, ok := h.Spec.(*kind.Spec); ok {
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
	res.IPs = mode.IPs(s.Addresses, 0)
	for _, route := range s.Routes {
		for i, a := range s.Addresses {
			if a.Addr().Is4() == route.Gateway.Is4() {
				res.IPs[i].Gateway = route.Gateway.AsSlice()
			}
		}
		res.Routes = append(res.Routes, &types.Route{Dst: mode.IPNet(route.Dst), GW: route.Gateway.AsSlice()})
	}
	return res, nil
}
