package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/vxlan"
	"github.com/berth-net/berth/internal/kinds/wireguard"
)

// tunnel is the tunnel to other nodes, as the ledger has it.
type tunnel struct {
	id     hold.ID
	device hold.Spec // *vxlan.Device or *wireguard.Device; nil: there is no tunnel, as err says
	err    error
	former bool // the device is of the other kind than the one that the node has to have: nodes leave it, and then it goes
}

// errFormer says why a node is out of reach while the tunnel changes its kind.
var errFormer = errors.New("the tunnel is being made anew, because kubernetes.routing has changed")

// TunnelName is the name of the tunnel's owner, whatever kind its device is of, and tunnelSort is what its record says.
var TunnelName = hold.Name{Space: "tunnel", Name: "vxlan"}

const tunnelSort = "tunnel"

var errNoTunnel = errors.New("there is no tunnel: this node's own address is not known yet")

// tunnels reports whether packets to a node's pods have to go through the tunnel. o is what the ledger has of the node: if
// there is no way to the node at the moment, nobody can tell, and the node stays as it was.
func (p *Peers) tunnels(n Node, o known) bool {
	if p.Routing != config.RoutingAuto {
		return p.tunnelled()
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

// tunnelled reports whether the node has to have a tunnel.
func (p *Peers) tunnelled() bool {
	return p.Routing == config.RoutingAuto || p.Routing == config.RoutingVXLAN || p.Routing == config.RoutingWireGuard
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
		switch h.Spec.(type) {
		case *vxlan.Device:
			return tunnel{id: id, device: h.Spec, former: p.tunnelled() && p.Routing == config.RoutingWireGuard}
		case *wireguard.Device:
			return tunnel{id: id, device: h.Spec, former: p.tunnelled() && p.Routing != config.RoutingWireGuard}
		}
	}
	return t
}

// device returns the device that the tunnel has to have; nil: this node's address is not known yet.
func (p *Peers) device() (hold.Spec, error) {
	p.mu.Lock()
	self := p.self
	p.mu.Unlock()
	if len(self.Addresses) == 0 {
		return nil, nil
	}
	var own []netip.Addr
	for _, c := range self.CIDRs {
		if c.Bits() < c.Addr().BitLen()-1 { // no pod has the network's own address (ipam)
			own = append(own, c.Addr())
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	local := self.local()
	if p.Routing != config.RoutingWireGuard {
		return &vxlan.Device{
			Instance: p.Instance, VNI: uint32(p.VXLAN.VNI), Port: uint16(p.VXLAN.Port), Local: local, MTU: p.MTU() - overhead(local), Addresses: own,
		}, nil
	}
	secret, err := p.Secret()
	if err != nil {
		return nil, err
	}
	return &wireguard.Device{Instance: p.Instance, PublicKey: secret.Public(), Port: uint16(p.WireGuard.Port), MTU: p.MTU() - sealing(local), Addresses: own}, nil
}

// local returns the address to which the node's tunnel belongs: the first IPv4 address of the node or, if it has none, its first
// IPv6 address.
func (n Node) local() netip.Addr {
	if i := slices.IndexFunc(n.Addresses, netip.Addr.Is4); i >= 0 {
		return n.Addresses[i]
	}
	return n.Addresses[0]
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
	if !p.tunnelled() {
		return t, false
	}
	if t.former {
		t.err = errFormer
		return t, false
	}
	d, err := p.device()
	if err != nil { // such as a private key that cannot be read: the device that there is stays
		p.noteTunnel(err)
		t.err = fmt.Errorf("there is no tunnel: %w", err)
		return t, false
	}
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
	for _, k := range p.view.list() {
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
	if t.device == nil || p.tunnelled() && !t.former {
		return
	}
	for _, k := range p.view.list() {
		if k.tunnels { // such as before anybody has told of all nodes
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	if err := p.Engine.Release(ctx, []hold.ID{t.id}); err != nil {
		p.Log.Warn("could not give the tunnel back yet", "err", err)
	}
	p.doubt() // the nodes that have left it go through the next one
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stir()
}

// through returns what leads to a node's pods through the tunnel, and an error about what cannot.
func (p *Peers) through(n Node, t tunnel) (specs []hold.Spec, err error) {
	if t.device == nil || t.former {
		return nil, t.err
	}
	gateway := func(c netip.Prefix) (netip.Addr, error) { return wireguard.Gateway(c), nil }
	if d, ok := t.device.(*vxlan.Device); ok {
		peer, err := behind(d, n)
		if err != nil {
			return nil, err
		}
		specs = append(specs, peer)
		gateway = func(c netip.Prefix) (netip.Addr, error) { return gatewayIn(peer, c) }
	} else {
		peer, err := p.sealed(n)
		if err != nil {
			return nil, err
		}
		specs = append(specs, peer)
	}
	for _, c := range n.CIDRs {
		via, failed := gateway(c)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		specs = append(specs, &noderoute.Spec{CIDR: c, Via: via, Metric: p.Metric, Tunnel: true})
	}
	return specs, err
}

// behind returns what a VXLAN device has for a node.
func behind(d *vxlan.Device, n Node) (*vxlan.Peer, error) {
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == d.Local.Is4() })
	if i < 0 {
		return nil, fmt.Errorf("the node has no address of the family of this node's, %s, from which the tunnel begins", d.Local)
	}
	return &vxlan.Peer{Instance: d.Instance, Node: n.Addresses[i]}, nil
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

// anywhere are all addresses.
var anywhere = cidrs.Of(netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))

// door returns the UDP port to which other nodes send through the tunnel, and the addresses of these nodes, as the ledger has
// them: WireGuard's device knows other nodes by their keys, and they may be anywhere. 0: there is no tunnel.
func (p *Peers) door() (port uint16, from cidrs.Set) {
	switch d := p.heldTunnel().device.(type) {
	case *wireguard.Device:
		return d.Port, anywhere
	case *vxlan.Device:
		return d.Port, p.view.from()
	}
	return 0, cidrs.Set{}
}

// Overhead returns how many bytes of each packet between nodes the tunnel takes; 0: there is none.
func (p *Peers) Overhead() int {
	p.mu.Lock()
	self := p.self
	p.mu.Unlock()
	d, held := p.heldTunnel().device.(*vxlan.Device)
	switch {
	case p.Routing == config.RoutingWireGuard && len(self.Addresses) > 0:
		return sealing(self.local())
	case p.Routing == config.RoutingWireGuard:
		return wireguard.Overhead4
	case held:
		return overhead(d.Local)
	case p.tunnelled():
		return vxlan.Overhead4
	}
	return 0
}
