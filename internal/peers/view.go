package peers

import (
	"encoding/json"
	"maps"
	"net/netip"
	"sync"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/ledger"
)

// known is what the ledger has of a node.
type known struct {
	id        hold.ID
	cidrs     []netip.Prefix
	addresses []netip.Addr
	tunnels   bool   // packets to its pods go through the tunnel
	key       string // of its WireGuard peer; "": it has none
	clear     bool   // packets to its pods go in clear: natively, or through VXLAN
}

// view has the ledger's nodes that are wanted, and finds each by what it has, so that news of one node cost no walk of the others.
// Follow keeps it in step.
type view struct {
	mu      sync.Mutex
	nodes   map[string]known        // by name
	names   map[hold.ID]string      // the nodes' names, by their owners
	keys    map[string]string       // by their WireGuard peers' keys
	holders map[netip.Prefix]string // by their pods' CIDRs
	// pods are the CIDRs of the nodes' pods, addresses the nodes' own addresses, and all is both.
	pods, addresses, all cidrs.Set
}

func newView() view {
	return view{nodes: map[string]known{}, names: map[hold.ID]string{}, keys: map[string]string{}, holders: map[netip.Prefix]string{}}
}

// Follow keeps what Peers knows of the ledger's nodes in step with the ledger's commits. The ledger calls it while all other
// commits wait.
func (p *Peers) Follow(c ledger.Change) {
	for _, edit := range c.Owners {
		if edit.After != nil {
			p.view.put(*edit.After)
		} else {
			p.view.drop(edit.Before.ID)
		}
	}
}

// Restore has Peers know the ledger's nodes.
func (p *Peers) Restore(owners []hold.Owner) {
	for _, o := range owners {
		p.view.put(o)
	}
}

// put notes an owner, if it is a node. A node that is not wanted any more is none.
func (v *view) put(o hold.Owner) {
	if len(o.NamesIn(nodeSpace)) == 0 { // before the record is decoded: most owners are attachments
		return
	}
	var r record
	if !o.Wanted() || json.Unmarshal(o.Meta, &r) != nil || r.Sort != nodeSort {
		v.drop(o.ID)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lose(r.Node)
	v.names[o.ID] = r.Node
	v.gain(r.Node, knownOf(o, r.Addresses))
}

func (v *view) drop(id hold.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	name, is := v.names[id]
	if !is {
		return
	}
	delete(v.names, id)
	if v.nodes[name].id == id { // else the node has a new owner by now
		v.lose(name)
	}
}

// gain notes what a node has. The caller holds v.mu.
func (v *view) gain(name string, k known) {
	v.nodes[name] = k
	if k.key != "" {
		v.keys[k.key] = name
	}
	for _, c := range k.cidrs {
		v.holders[c] = name
	}
	at := hosts(k.addresses)
	v.pods, v.addresses, v.all = v.pods.With(k.cidrs...), v.addresses.With(at...), v.all.With(k.cidrs...).With(at...)
}

// lose forgets a node, if it is known. The caller holds v.mu.
func (v *view) lose(name string) {
	k := v.nodes[name]
	delete(v.nodes, name)
	if v.keys[k.key] == name {
		delete(v.keys, k.key)
	}
	for _, c := range k.cidrs {
		if v.holders[c] == name {
			delete(v.holders, c)
		}
	}
	at := hosts(k.addresses)
	v.pods, v.addresses, v.all = v.pods.Without(k.cidrs...), v.addresses.Without(at...), v.all.Without(k.cidrs...).Without(at...)
}

// hosts returns addresses as CIDRs.
func hosts(addresses []netip.Addr) (all []netip.Prefix) {
	for _, a := range addresses {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// node returns what the ledger has of a node, if it has the node.
func (v *view) node(name string) (k known, held bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	k, held = v.nodes[name]
	return k, held
}

// list returns all of the ledger's nodes, by name.
func (v *view) list() map[string]known {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.nodes)
}

// overlapping returns another node than the named one whose pods' CIDRs overlap c, and these CIDRs; "": there is none.
func (v *view) overlapping(c netip.Prefix, name string) (other string, of []netip.Prefix) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range v.pods.Overlapping(c) {
		if other = v.holders[p]; other != name {
			return other, v.nodes[other].cidrs
		}
	}
	return "", nil
}

// keyOf returns the node whose WireGuard peer has a key; "": there is none.
func (v *view) keyOf(key string) (name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.keys[key]
}

func knownOf(o hold.Owner, addresses []netip.Addr) known {
	k := known{id: o.ID, addresses: addresses, tunnels: len(o.Needs) > 0}
	for _, h := range o.Holds {
		switch s := h.Spec.(type) {
		case *wireguard.Peer:
			k.key = s.PublicKey
		case *noderoute.Spec:
			k.clear = k.clear || !s.Closed
		}
	}
	k.clear = k.clear && k.key == ""
	for _, name := range o.NamesIn("cidr") {
		if c, err := netip.ParsePrefix(name); err == nil {
			k.cidrs = append(k.cidrs, c)
		}
	}
	return k
}

// Others returns what the node's table has to say of the cluster's other nodes.
func (p *Peers) Others() nft.Others {
	o := nft.Others{Reached: p.reached()}
	o.TunnelPort, o.Tunnels = p.door()
	return o
}

// reached returns to where traffic from pods keeps the pods' addresses: the CIDRs of other nodes' pods and, unless the routing is
// WireGuard, these nodes' addresses, as the ledger has them. With WireGuard, packets for nodes' own addresses go beside the tunnel, and
// the answers to a pod's address would come through it: the pod's node would not take an address that is no pod's of the other
// node. So these packets leave with this node's address.
func (p *Peers) reached() cidrs.Set {
	v := &p.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if p.Routing == config.RoutingWireGuard {
		return v.pods
	}
	return v.all
}

// from returns the addresses of the ledger's nodes.
func (v *view) from() cidrs.Set {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.addresses
}
