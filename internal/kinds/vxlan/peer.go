package vxlan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// PeerKind is the name of the kind of what the device has for another node.
const PeerKind = "vxlanpeer"

// batch is how many peers one Release takes.
const batch = 32

// Peer says by which gateways of the device routes lead to another node (Gateway4, Gateway6): permanent neighbours with the
// MAC of the other node's device, and an entry that sends frames for this MAC to the node's address.
type Peer struct {
	Instance string     `json:"instance"`
	Node     netip.Addr `json:"node"` // the other node's address
}

// Kind returns PeerKind.
func (p *Peer) Kind() string { return PeerKind }

func (p *Peer) String() string {
	return fmt.Sprintf("node %s behind VXLAN device %s", p.Node, stamp.Tunnel(p.Instance))
}

// Gateway4 returns the gateway of routes to a node's IPv4 pods: the node's address, as `ip route` then shows. ok is false if
// that is no IPv4 address.
func Gateway4(node netip.Addr) (gateway netip.Addr, ok bool) { return node, node.Is4() }

// Gateway6 returns the gateway of routes to a node's IPv6 pods: the link-local address that follows from the node's MAC
// (RFC 4291, appendix A). The kernel refuses the node's own address, which it knows to be behind another link.
func Gateway6(node netip.Addr) netip.Addr {
	mac, _ := net.ParseMAC(MACOf(node))
	a := netip.MustParseAddr("fe80::").As16()
	copy(a[8:], []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	return netip.AddrFrom16(a)
}

// gateways are the neighbours of a peer. The kernel of a node without IPv6 has no IPv6 neighbours.
func (p *Peer) gateways(ipv6 bool) (all []netip.Addr) {
	if a, ok := Gateway4(p.Node); ok {
		all = append(all, a)
	}
	if ipv6 {
		all = append(all, Gateway6(p.Node))
	}
	return all
}

// PeerKind returns the kind of what the device has for other nodes. All of it goes with the device.
func (t *Tunnel) PeerKind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Peer) },
		Acquire: t.acquirePeer,
		Verify:  t.verifyPeers,
		Release: t.releasePeers,
		Batch:   batch,
		Find:    t.findPeers,
	}
}

// peer returns a hold's spec, and refuses a spec that is no peer of this instance.
func (t *Tunnel) peer(h hold.Hold) (*Peer, error) {
	p, ok := h.Spec.(*Peer)
	switch {
	case !ok:
		return nil, fmt.Errorf("a hold of kind %s is not a node behind a tunnel", h.Spec.Kind())
	case p.Instance != t.Instance:
		return nil, fmt.Errorf("%s does not belong to this instance, %s", p, t.Instance)
	case !p.Node.IsValid():
		return nil, fmt.Errorf("%s: no address", p)
	}
	return p, nil
}

// table is what the instance's device has for other nodes.
type table struct {
	index      int  // of the device; 0: there is none
	ipv6       bool // the device has IPv6
	remotes    []rtnl.Remote
	neighbours []rtnl.Neighbour
}

func (t *Tunnel) table() (all table, err error) {
	devices, err := t.devices()
	if err != nil || len(devices) == 0 {
		return all, err
	}
	all.index = devices[0].Index
	if all.remotes, err = t.Conn.Remotes(all.index); err != nil {
		return all, fmt.Errorf("looking at where the tunnel leads: %w", err)
	}
	neighbours, err := t.Conn.Neighbours()
	if err != nil {
		return all, fmt.Errorf("looking at the tunnel's neighbours: %w", err)
	}
	all.neighbours = slices.DeleteFunc(neighbours, func(n rtnl.Neighbour) bool { return n.Index != all.index })
	all.ipv6 = t.hasIPv6(devices[0].Name)
	return all, nil
}

// hasIPv6 reports whether a device of the node has IPv6.
func (t *Tunnel) hasIPv6(name string) bool {
	var l rtnl.Link
	return t.Conn.Do(rtnl.GetLink(name, &l)) == nil && l.Conf.IPv6 && l.Conf.DisableIPv6 == 0
}

func (t *Tunnel) acquirePeer(_ context.Context, h hold.Hold) error {
	p, err := t.peer(h)
	if err != nil {
		return err
	}
	devices, err := t.devices()
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return fmt.Errorf("%s: there is no such device: %w", p, kernel.ErrNotFound)
	}
	index, mac := devices[0].Index, MACOf(p.Node)
	raw, _ := net.ParseMAC(mac)
	rs := []rtnl.Request{rtnl.SetRemote(rtnl.Remote{MAC: mac, Addr: p.Node, Index: index})}
	for _, a := range p.gateways(t.hasIPv6(devices[0].Name)) {
		rs = append(rs, rtnl.SetNeighbour(a, raw, index))
	}
	return t.Conn.Do(rs...)
}

func (t *Tunnel) verifyPeers(_ context.Context, _ *hold.Look, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	has, seeing := t.table()
	for i, h := range hs {
		p, err := t.peer(h)
		switch {
		case err != nil:
			errs[i] = err
		case seeing != nil:
			errs[i] = seeing
		default:
			errs[i] = has.verify(p)
		}
	}
	return errs
}

// verify compares what the device has for a node.
func (has table) verify(p *Peer) error {
	mac, want := MACOf(p.Node), p.gateways(has.ipv6)
	there := 0
	for _, a := range want {
		if slices.Contains(has.neighbours, rtnl.Neighbour{Addr: a, MAC: mac, Index: has.index}) {
			there++
		}
	}
	sent := slices.Contains(has.remotes, rtnl.Remote{MAC: mac, Addr: p.Node, Index: has.index})
	switch {
	case sent && there == len(want):
		return nil
	case sent || there > 0:
		return fmt.Errorf("%s is %w: it has %d of %d neighbours, and is sent to: %t", p, hold.ErrChanged, there, len(want), sent)
	}
	return fmt.Errorf("%s is %w", p, hold.ErrGone)
}

// releasePeers removes nodes one by one: it does not look at what the device has for the others.
func (t *Tunnel) releasePeers(_ context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	devices, seeing := t.devices()
	for i, h := range hs {
		p, err := t.peer(h)
		switch err = errors.Join(err, seeing); {
		case err != nil:
			errs[i] = err
		case len(devices) > 0: // without the device nothing is there
			errs[i] = t.forget(p, devices[0].Index)
		}
	}
	return errs
}

// forget removes what the device with an index has for a node. A neighbour that has another MAC is somebody else's, and stays.
func (t *Tunnel) forget(p *Peer, index int) (failed error) {
	mac, gateways := MACOf(p.Node), p.gateways(true)
	neighbours := make([]rtnl.Neighbour, len(gateways))
	rs := []rtnl.Request{rtnl.DelRemote(rtnl.Remote{MAC: mac, Addr: p.Node, Index: index})}
	for i, a := range gateways {
		rs = append(rs, rtnl.GetNeighbour(a, index, &neighbours[i]))
	}
	errs := t.Conn.Each(rs...)
	rs = nil
	for i, n := range neighbours {
		if n.MAC == mac {
			rs = append(rs, rtnl.DelNeighbour(gateways[i], index))
		}
	}
	for _, err := range append(errs, t.Conn.Each(rs...)...) {
		if !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, kernel.ErrUnsupported) { // such as without IPv6
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// findPeers returns the nodes that the device sends to. An entry does not say which owner has it.
func (t *Tunnel) findPeers(context.Context, *hold.Look) ([]hold.Hold, error) {
	has, err := t.table()
	holds := make([]hold.Hold, len(has.remotes))
	for i, r := range has.remotes {
		holds[i].Spec = &Peer{Instance: t.Instance, Node: r.Addr}
	}
	return holds, err
}
