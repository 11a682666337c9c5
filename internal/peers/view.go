package peers

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/noderoute"
	"github.com/berth-net/berth/internal/kinds/wireguard"
	"github.com/berth-net/berth/internal/ledger"
)

// owners are the nodes that the ledger has and that are wanted, by name.
type owners map[string]known

// known is what the ledger has of a node.
type known struct {
	id        hold.ID
	cidrs     []netip.Prefix
	addresses []netip.Addr
	tunnels   bool   // packets to its pods go through the tunnel
	key       string // of its WireGuard peer; "": it has none
	clear     bool   // packets to its pods go in clear: natively, or through VXLAN
}

// view has the ledger's nodes, so that news of one node do not cost a walk of the ledger. Follow keeps it in step.
type view struct {
	mu      sync.Mutex
	nodes   owners
	names   map[hold.ID]string // of the nodes
	reached []netip.Prefix     // what Reached returns; nil: a node has changed since
}

func newView() view { return view{nodes: owners{}, names: map[hold.ID]string{}} }

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
	v.nodes[r.Node], v.names[o.ID], v.reached = knownOf(o, r.Addresses), r.Node, nil
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
		delete(v.nodes, name)
	}
	v.reached = nil
}

// owners returns the ledger's nodes. The caller may change the map.
func (p *Peers) owners() owners {
	p.view.mu.Lock()
	defer p.view.mu.Unlock()
	return maps.Clone(p.view.nodes)
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

// Reached returns to where traffic from pods keeps the pods' addresses: the CIDRs of other nodes' pods and, unless the routing is
// WireGuard, these nodes' addresses, as the ledger has them. With WireGuard, packets for nodes' own addresses go beside the tunnel, and
// the answers to a pod's address would come through it: the pod's node would not take an address that is no pod's of the other
// node. So these packets leave with this node's address. The caller must not change the slice.
func (p *Peers) Reached() []netip.Prefix {
	v := &p.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.reached == nil {
		for _, k := range v.nodes {
			v.reached = append(v.reached, k.cidrs...)
			if p.Routing == config.RoutingWireGuard {
				continue
			}
			for _, a := range k.addresses {
				v.reached = append(v.reached, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		slices.SortFunc(v.reached, netip.Prefix.Compare)
	}
	return v.reached
}
