package chained

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/mode"
)

const (
	badPorts     = "invalid configuration: runtimeConfig.portMappings"
	badBandwidth = "invalid configuration: runtimeConfig.bandwidth"
	badPrev      = "invalid configuration: prevResult"
)

// Fit refuses a prevResult without the pod's interface, and what the node cannot do for the interface.
func (m *Chained) Fit(r attachment.Record, c *netconf.Conf) error {
	_, err := m.sight(r, c)
	return err
}

// sight looks at the pod's interface, and refuses what the node cannot do for it.
func (m *Chained) sight(r attachment.Record, c *netconf.Conf) (s shaping.Sight, err error) {
	prev, err := parse(r)
	if err != nil {
		return s, err
	}
	if len(prev.Interfaces) > 0 && interfaceOf(prev, r.Ifname) < 0 { // results of CNI 0.1.0 and 0.2.0 have no interfaces
		return s, cni.Errorf(cni.CodeConfig, badPrev, "it has no interface %s with a sandbox; the plugin ahead of berth-cni has to make it", r.Ifname)
	}
	addrs := addresses(prev, r.Ifname)
	s, err = m.Look(r.Netns, r.Ifname, addrs)
	switch {
	case errors.Is(err, kernel.ErrNotFound):
		return s, cni.Errorf(cni.CodeConfig, badPrev, "%s has no interface %s; the plugin ahead of berth-cni has to make it", r.Netns.Path, r.Ifname)
	case err != nil:
		return s, fmt.Errorf("looking for %s in %s: %w", r.Ifname, r.Netns.Path, err)
	}
	if c.Bandwidth != (netconf.Bandwidth{}) {
		if s.Host.Index == 0 {
			return s, cni.Errorf(cni.CodeConfig, badBandwidth, "%s has no end on the node, which could limit it: it is no veth, or a veth that leads elsewhere", r.Ifname)
		}
		if err := mode.FitBandwidth(c.Bandwidth, s.Host.MTU); err != nil {
			return s, err
		}
	}
	return s, m.fitPorts(r, c, s, addrs)
}

// fitPorts refuses host ports to a pod that the node reaches neither by the pod's own link nor by the bridge that this is a port of: such a
// port could lead to whoever has the pod's address later.
func (m *Chained) fitPorts(r attachment.Record, c *netconf.Conf, s shaping.Sight, addrs []netip.Addr) error {
	if len(c.Ports) == 0 {
		return nil
	}
	if m.Lacks()&nft.HostPorts != 0 {
		return cni.Errorf(cni.CodeConfig, "host ports are not supported",
			"this kernel lacks something of what they need (nft_nat, nft_masq, nft_fib, nft_ct); berth status says so too")
	}
	if s.Host.Index == 0 {
		return cni.Errorf(cni.CodeConfig, badPorts, "%s has no end on the node: it is no veth, or a veth that leads elsewhere", r.Ifname)
	}
	for _, p := range c.Ports {
		same := func(a netip.Addr) bool { return !p.HostIP.IsValid() || a.Is4() == p.HostIP.Is4() }
		if !slices.ContainsFunc(addrs, same) {
			return cni.Errorf(cni.CodeConfig, badPorts, "host port %d: %s has no address of its family", p.Host, r.Ifname)
		}
	}
	for i, a := range addrs {
		switch {
		case s.By[i] == s.Host.Index:
		case s.By[i] == 0 || s.By[i] != s.Host.Master:
			return cni.Errorf(cni.CodeConfig, badPorts, "the node reaches %s neither by %s, the end of %s on the node, nor by a bridge that this is a port of, but by %s: "+
				"a port could lead to the pod's successor. Plugins that route to each pod, such as ptp, can have host ports of berth-cni, and so can the plugin bridge with isGateway "+
				"and without vlan; elsewhere use the plugin portmap", a, s.Host.Name, r.Ifname, by(s.By[i]))
		case m.Lacks()&nft.Bridges != 0:
			return cni.Errorf(cni.CodeConfig, badPorts, "%s is behind a bridge, and this kernel has no nftables of family bridge (nf_tables_bridge), which keep a port from the pod's "+
				"successor: use the plugin portmap, or one that routes to each pod, such as ptp", r.Ifname)
		}
	}
	return nil
}

// by names a link by its index.
func by(index int) string {
	if index == 0 {
		return "no link"
	}
	return fmt.Sprintf("link %d", index)
}

// Plan claims the host ports. The owner has no name for an address.
func (m *Chained) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	s, err := m.sight(r, c)
	if err != nil {
		return hold.Owner{}, nil, err
	}
	prev, err := parse(r)
	if err != nil {
		return hold.Owner{}, nil, err
	}
	link := &shaping.Spec{Link: s.Host.Name, Index: s.Host.Index, Netns: r.Netns, Ifname: r.Ifname, MTU: s.Pod.MTU}
	if s.Host.Index != 0 {
		link.MTU = s.Host.MTU
	}
	link.Ingress, link.Egress = mode.Shape(c.Bandwidth.Ingress, s.Host.MTU), mode.Shape(c.Bandwidth.Egress, s.Host.MTU)
	o := hold.Owner{ID: id, Meta: r.Encode(), Holds: []hold.Hold{{Owner: id, Spec: link}}}
	addrs := addresses(prev, r.Ifname)
	ports := mode.Mappings(c.Ports, addrs)
	if len(ports) == 0 {
		return o, func() {}, nil
	}
	if err := m.Vacate(ctx, addrs); err != nil {
		return hold.Owner{}, nil, err
	}
	undo, err := m.ClaimPorts(ctx, id, ports)
	if err != nil {
		return hold.Owner{}, nil, err
	}
	for i := range ports {
		if ports[i].Via = s.By[slices.Index(addrs, ports[i].Pod.Addr())]; ports[i].Via != s.Host.Index {
			ports[i].BridgePort = s.Host.Index
		}
		o.Names = append(o.Names, hostports.Name(ports[i]))
	}
	o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &hostports.Spec{Mappings: ports}})
	return o, undo, nil
}
