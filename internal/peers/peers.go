// Package peers keeps the ways to the pods of the cluster's other nodes. Each of these nodes is an owner,
// whose names are the node's name and the CIDRs of its pods, and whose holds are the routes to these CIDRs. If these lead
// through the tunnel, the node needs another owner, whose hold is the tunnel's device (tunnel.go).
// So a CIDR leads to one node at a time, and everything that the engine does for other owners (restart, sweep,
// audit, owed) it does for these routes. Whoever knows the cluster's nodes tells Peers of them (All, Put, Drop),
// and Keep makes the ledger and the node agree with that. Until somebody has told Peers of all nodes, such as
// while the API server is away, the ledger's nodes stay as they are.
package peers

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Node is another node of the cluster.
type Node struct {
	Name      string
	CIDRs     []netip.Prefix // of its pods, masked
	Addresses []netip.Addr   // by which its pods are reached; the first one of a family counts
	Health    []netip.Addr   // of its responder (package health), at most one of a family; Peers leaves them alone
	WireGuard WireGuard      // how its WireGuard device is reached; zero: it has told of none
	Boot      string         // the id of its boot, as its kubelet says; "": nobody has told
}

// WireGuard is how a node's WireGuard device is reached, at one of the node's addresses.
type WireGuard struct {
	PublicKey string // base64
	Port      uint16 // UDP
}

// record is the Owner.Meta of a node's owner.
type record struct {
	Sort      string       `json:"sort"` // nodeSort
	Node      string       `json:"node"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

const nodeSort = "node"

// Name returns the name that the owner of another node has.
func Name(node string) hold.Name { return hold.Name{Space: nodeSpace, Name: node} }

const nodeSpace = "node"

// cidrName is the name of a CIDR. The pools' owners have such names, too (ground.CIDRName): no CIDR is a pool's
// and another node's.
func cidrName(p netip.Prefix) hold.Name { return hold.Name{Space: "cidr", Name: p.String()} }

// Options are what Peers needs.
type Options struct {
	Metric uint32 // of the instance's routes
	// Routing says how packets get to other nodes' pods (config.Kubernetes), and VXLAN by what the nodes' tunnel is known.
	Routing   string
	VXLAN     config.VXLAN
	WireGuard config.WireGuard
	// Tell tells the cluster how this node's WireGuard device is reached; zero: it has none. nil: nobody listens.
	Tell func(context.Context, WireGuard) error
	// MTU returns the MTU of the links between nodes, in bytes.
	MTU func() int
	// Hops says where packets of the node to addresses go first (rtnl.Conn.Hops).
	Hops func([]netip.Addr) []rtnl.Hop
	// Ask has the kernel ask anew who has addresses (rtnl.Conn.AskAnew).
	Ask func([]netip.Addr) error
	// Own returns the CIDRs of this node's pods.
	Own func() []netip.Prefix
	// Changed is told that the ledger has other nodes, CIDRs or addresses than before (Reached).
	Changed func(context.Context)
}

// Peers keeps the ways to other nodes' pods.
type Peers struct {
	*daemon.Core
	Options
	view view

	mu         sync.Mutex
	self       Node             // this node; zero: nobody has told of it
	all        bool             // somebody has told of all nodes: others in the ledger are gone
	want       map[string]Node  // by name
	dirty      map[string]bool  // the nodes for which the ledger may not be as want says
	anew       bool             // so may be all nodes that the ledger has
	shaken     bool             // the node may lack what the ledger has
	moved      []netip.Addr     // of nodes that have booted, maybe with other network cards
	failed     map[string]error // why it is not, by node
	tunnelless error            // why the tunnel is not as it should be
	told       WireGuard        // what the cluster knows of this node's device
	untold     error            // why it does not know what it should
	wake       chan struct{}    // has a token while dirty is not empty
}

// New returns Peers that know of no node.
func New(d *daemon.Core, o Options) *Peers {
	return &Peers{
		Core: d, Options: o, view: newView(),
		want: map[string]Node{}, dirty: map[string]bool{}, failed: map[string]error{}, wake: make(chan struct{}, 1),
	}
}

// Self tells of this node: to where other nodes send through the tunnel, and which addresses the tunnel's device has.
func (p *Peers) Self(n Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.self.is(n) {
		return
	}
	if p.self.Name == "" || p.self.WireGuard != n.WireGuard {
		p.told = n.WireGuard
	}
	p.self = n
	p.stir()
}

func (n Node) is(o Node) bool {
	return n.Name == o.Name && slices.Equal(n.CIDRs, o.CIDRs) && slices.Equal(n.Addresses, o.Addresses) && n.WireGuard == o.WireGuard && n.Boot == o.Boot
}

// All tells of all other nodes: nodes that are not among them are gone.
func (p *Peers) All(nodes []Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = true
	was := p.want
	p.want = make(map[string]Node, len(nodes))
	for _, n := range nodes {
		p.booted(was[n.Name], n)
		p.want[n.Name], p.dirty[n.Name] = n, true
	}
	p.anew = true
	p.stir()
}

// Put tells of a node that is new, or that may have changed. A node's kubelet updates its Node every few minutes, so
// most calls tell nothing new.
func (p *Peers) Put(n Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, known := p.want[n.Name]
	if known && was.is(n) {
		return
	}
	p.booted(was, n)
	p.want[n.Name], p.dirty[n.Name] = n, true
	p.stir()
}

// booted notes a node that has booted since it was told of as was. The kernel keeps the MAC of its former network card otherwise until it
// asks again by itself, which takes up to a minute; by IPv4, but not by IPv6, a node that boots tells all others of itself. The caller
// holds p.mu.
func (p *Peers) booted(was, n Node) {
	if was.Boot != "" && n.Boot != "" && was.Boot != n.Boot {
		p.moved = append(p.moved, n.Addresses...)
	}
}

// Drop tells that a node is gone.
func (p *Peers) Drop(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.want, name)
	p.dirty[name] = true
	p.stir()
}

// Look has Keep look whether the node still has the ways, such as when it has got an address: the kernel takes all IPv4 routes
// through a link with the link's last address, and tells nobody.
func (p *Peers) Look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shaken = true
	p.stir()
}

// stir wakes Keep. The caller holds p.mu.
func (p *Peers) stir() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

const (
	// again is how long Keep waits until it tries again what has failed.
	again = 5 * time.Second
	// review is how often Keep looks whether there is a router before another node, which nobody tells of.
	review = 30 * time.Second
)

// Keep makes the ledger and the node agree with what Peers was told, until ctx ends. What fails, such as a CIDR
// that another node or a pool has, keeps no other node.
func (p *Peers) Keep(ctx context.Context) {
	if p.Routing == config.RoutingWireGuard { // nodes that the ledger has ways to in clear are closed, whoever tells of them or not
		p.mu.Lock()
		p.anew = true
		p.stir()
		p.mu.Unlock()
	}
	for {
		var look <-chan time.Time
		if p.Routing == config.RoutingAuto {
			look = time.After(review)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-look:
			p.doubt()
		}
		p.settle(ctx)
		p.mu.Lock()
		later := len(p.failed) > 0 || p.tunnelless != nil || p.untold != nil
		p.mu.Unlock()
		if later {
			daemon.Sleep(ctx, again, p.wake)
			p.mu.Lock()
			for name := range p.failed {
				p.dirty[name] = true
			}
			p.stir()
			p.mu.Unlock()
		}
	}
}

// doubt has settle look at all nodes.
func (p *Peers) doubt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.want {
		p.dirty[name] = true
	}
}

// Count returns how many other nodes Peers was told of.
func (p *Peers) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.want)
}

// Failed returns why pods of other nodes may not be reached, by node.
func (p *Peers) Failed() map[string]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.failed)
}
