package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/config"
	door "github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/kinds/wireguard"
)

// errKeyless says why a node is out of reach that has not told of its WireGuard device, such as while its agent has another routing.
var errKeyless = errors.New("the node has told no WireGuard key yet (annotation berth.dev/wireguard-public-key), and nothing may go to its pods in clear")

// Secret returns this node's private key, which the first call ever makes.
func (p *Peers) Secret() (door.Secret, error) { return door.LoadSecret(p.Root.WireGuardKey()) }

// RemoveSecret removes this node's private key. The next one makes the node another one for other nodes' agents.
func (p *Peers) RemoveSecret() error { return door.RemoveSecret(p.Root.WireGuardKey()) }

// mine returns how other nodes' devices reach the device that this node has; zero: it has none. The key is the device's, whatever has
// become of its file since.
func (p *Peers) mine() (mine WireGuard) {
	if d, ok := p.heldTunnel().device.(*wireguard.Device); ok && p.Routing == config.RoutingWireGuard {
		return WireGuard{PublicKey: d.PublicKey, Port: d.Port}
	}
	return WireGuard{}
}

// sealing returns how many bytes of each packet WireGuard takes between nodes with addresses of that family.
func sealing(local netip.Addr) int {
	if local.Is4() {
		return wireguard.Overhead4
	}
	return wireguard.Overhead6
}

// sealed returns the peer that this node's device has for another node. It refuses a key that another node has: packets for one of
// the two would go to the other.
func (p *Peers) sealed(n Node) (*wireguard.Peer, error) {
	key := n.WireGuard.PublicKey
	if key == "" {
		return nil, errKeyless
	}
	if key == p.mine().PublicKey {
		return nil, fmt.Errorf("the node has this node's own WireGuard key: remove %s on the one whose disk is a copy, and restart its agent", p.Root.WireGuardKey())
	}
	if other := p.view.keyOf(key); other != "" && other != n.Name {
		return nil, fmt.Errorf("the node has the WireGuard key of node %s: remove %s on the one whose disk is a copy, and restart its agent", other, p.Root.WireGuardKey())
	}
	p.mu.Lock()
	v4 := slices.ContainsFunc(p.self.Addresses, netip.Addr.Is4)
	p.mu.Unlock()
	at := n.Addresses[0]
	if i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == v4 }); i >= 0 {
		at = n.Addresses[i]
	}
	return &wireguard.Peer{
		Instance: p.Instance, PublicKey: key, Endpoint: netip.AddrPortFrom(at, n.WireGuard.Port),
		AllowedIPs: slices.SortedFunc(slices.Values(n.CIDRs), netip.Prefix.Compare),
	}, nil
}

// tell tells the cluster how this node's device is reached, once the device is there, and that it is not reached any more.
func (p *Peers) tell(ctx context.Context) {
	mine := p.mine()
	p.mu.Lock()
	known, told, was := p.self.Name != "", p.told, p.untold
	p.mu.Unlock()
	awaited := mine == WireGuard{} && p.Routing == config.RoutingWireGuard // the device is not there yet
	if p.Tell == nil || !known || told == mine && was == nil || awaited {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	err := p.Tell(ctx, mine)
	cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.untold = err; err == nil {
		p.told = mine
	} else if was == nil || was.Error() != err.Error() {
		p.Log.Warn("other nodes do not know this node's WireGuard key yet, and send nothing to its pods: the agent tries again", "err", err)
	}
}
