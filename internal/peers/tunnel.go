package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/vxlan"
)

// tunnel is the tunnel to other nodes, as the ledger has it.
type tunnel struct {
	id     hold.ID
	device *vxlan.Device // nil: there is no tunnel, as err says
	err    error
}

// TunnelName is the name of the tunnel's owner, and tunnelSort is what its record says.
var TunnelName = hold.Name{Space: "tunnel", Name: "vxlan"}

const tunnelSort = "tunnel"

var errNoTunnel = errors.New("there is no tunnel: this node's own address is not known yet")

// tunnels reports whether packets to a node's pods have to go through the tunnel. o is what the ledger has of the node: if
// there is no way to the node at the moment, nobody can tell, and the node stays as it was.
func (p *Peers) tunnels(n Node, o known) bool {
	if p.Routing != config.RoutingAuto {
		return p.Routing == config.RoutingVXLAN
	}
	var gateways []netip.Addr
	for _, c := range n.CIDRs {
		if a, err := n.gateway(c); err == nil {
			gateways = append(gateways, a)
		}
	}
	hops := p.Hops(gateways)
	return slices.Contains(hops, rtnl.Router) || slices.Contains(hops, rtnl.NoHop) && o.tunnels
}

// heldTunnel returns the tunnel that the ledger has.
func (p *Peers) heldTunnel() tunnel {
	t := tunnel{err: errNoTunnel}
	id, held := p.Ledger.Holder(TunnelName)
	if !held {
		return t
	}
	o, ok := p.Ledger.Owner(id)
	if !ok || !o.Wanted() {
		return t
	}
	for _, h := range o.Holds {
		if d, ok := h.Spec.(*vxlan.Device); ok {
			return tunnel{id: id, device: d}
		}
	}
	return t
}

// device returns the device that the tunnel has to have; nil: this node's address is not known yet. The device belongs to
// the first IPv4 address of the node or, if it has none, to its first IPv6 address.
func (p *Peers) device() *vxlan.Device {
	p.mu.Lock()
	self := p.self
	p.mu.Unlock()
	if len(self.Addresses) == 0 {
		return nil
	}
	local := self.Addresses[0]
	if i := slices.IndexFunc(self.Addresses, netip.Addr.Is4); i >= 0 {
		local = self.Addresses[i]
	}
	d := &vxlan.Device{
		Instance: p.Instance, VNI: uint32(p.VXLAN.VNI), Port: uint16(p.VXLAN.Port), Local: local, MTU: p.MTU() - overhead(local),
	}
	for _, c := range self.CIDRs {
		if c.Bits() < c.Addr().BitLen()-1 { // no pod has the network's own address (ipam)
			d.Addresses = append(d.Addresses, c.Addr())
		}
	}
	slices.SortFunc(d.Addresses, netip.Addr.Compare)
	return d
}

func overhead(local netip.Addr) int {
	if local.Is4() {
		return vxlan.Overhead4
	}
	return vxlan.Overhead6
}

// keepTunnel makes the ledger and the node have the tunnel that the node needs. Without a tunnel to keep, it returns the
// tunnel that other nodes may still need (leaveTunnel). renewed says that the ledger has changed.
func (p *Peers) keepTunnel(ctx context.Context) (t tunnel, renewed bool) {
	t = p.heldTunnel()
	if p.Routing != config.RoutingAuto && p.Routing != config.RoutingVXLAN {
		return t, false
	}
	d := p.device()
	if d == nil || t.device != nil && t.device.String() == d.String() {
		return t, false
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	id := t.id
	if t.device == nil {
		id = hold.NewID()
	}
	next := hold.Owner{
		ID: id, Meta: record{Sort: tunnelSort}.encode(), Names: []hold.Name{TunnelName},
		Holds: []hold.Hold{{Owner: id, Spec: d}},
	}
	var err error
	if t.device == nil {
		err = p.take(ctx, next)
	} else {
		err = p.change(ctx, next)
	}
	p.noteTunnel(err)
	if err != nil {
		t.err = fmt.Errorf("there is no tunnel: %w", err)
		return t, true
	}
	// A device that was made anew has lost what led through it.
	var behind []hold.ID
	for _, k := range p.owners() {
		if k.tunnels {
			behind = append(behind, k.id)
		}
	}
	if err := p.Engine.Repair(ctx, behind...); err != nil {
		p.Log.Warn("pods of other nodes may not be reached until the sweep has put the ways to them right", "err", err)
	}
	return tunnel{id: id, device: d}, true
}

// noteTunnel notes why the tunnel is not as it should be; nil: it is.
func (p *Peers) noteTunnel(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.tunnelless
	p.tunnelless = err
	if err != nil && (was == nil || was.Error() != err.Error()) {
		p.Log.Warn("the tunnel to other nodes is not as it should be: the agent tries again", "err", err)
	}
}

// leaveTunnel gives the tunnel back if the node needs none.
func (p *Peers) leaveTunnel(ctx context.Context, t tunnel) {
	if t.device == nil || p.Routing == config.RoutingAuto || p.Routing == config.RoutingVXLAN {
		return
	}
	for _, k := range p.owners() {
		if k.tunnels { // such as before anybody has told of all nodes
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	if err := p.Engine.Release(ctx, []hold.ID{t.id}); err != nil {
		p.Log.Warn("could not give the tunnel back yet", "err", err)
	}
}

// peer returns what the tunnel's device has for a node.
func (t tunnel) peer(n Node) (*vxlan.Peer, error) {
	if t.device == nil {
		return nil, t.err
	}
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == t.device.Local.Is4() })
	if i < 0 {
		return nil, fmt.Errorf("the node has no address of the family of this node's, %s, from which the tunnel begins", t.device.Local)
	}
	return &vxlan.Peer{Instance: t.device.Instance, Node: n.Addresses[i]}, nil
}

// gatewayIn returns the gateway of the tunnel by which packets to a CIDR of a node's pods go.
func gatewayIn(p *vxlan.Peer, c netip.Prefix) (netip.Addr, error) {
	if c.Addr().Is6() {
		return vxlan.Gateway6(p.Node), nil
	}
	if gateway, ok := vxlan.Gateway4(p.Node); ok {
		return gateway, nil
	}
	return netip.Addr{}, fmt.Errorf("the tunnel to a node without an IPv4 address leads to no IPv4 pods, such as those of %s", c)
}

// Tunnel returns the UDP port to which other nodes send through the tunnel, and the addresses of these nodes, as the ledger has
// them; 0: there is no tunnel.
func (p *Peers) Tunnel() (port uint16, from []netip.Prefix) {
	t := p.heldTunnel()
	if t.device == nil {
		return 0, nil
	}
	for _, k := range p.owners() {
		for _, a := range k.addresses {
			from = append(from, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(from, netip.Prefix.Compare)
	return t.device.Port, from
}

// Overhead returns how many bytes of each packet between nodes the tunnel takes; 0: there is none.
func (p *Peers) Overhead() int {
	if t := p.heldTunnel(); t.device != nil {
		return overhead(t.device.Local)
	}
	if p.Routing == config.RoutingAuto || p.Routing == config.RoutingVXLAN {
		return vxlan.Overhead4
	}
	return 0
}
