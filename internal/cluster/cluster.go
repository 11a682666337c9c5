// Package cluster is what a node's agent does because the node belongs to a cluster: it follows the cluster's API server
// (kube), keeps the node's blocks of the cluster's pools (lease) and the ways to the pods of the other nodes (peers), probes
// these nodes (health), and tells people what goes wrong (notice).
package cluster

import (
	"context"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/health"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kube"
	"github.com/berth-net/berth/internal/lease"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/notice"
	"github.com/berth-net/berth/internal/peers"
	"github.com/berth-net/berth/internal/traffic"
)

// Cluster is the cluster that a node belongs to, or none.
type Cluster struct {
	Peers *peers.Peers
	Nodes *health.Health
	// Notices are for the cluster's people; nil: the node belongs to no cluster.
	Notices *notice.Notices
	Owed    func() []api.OwedHold // what could not be released yet
	Long    time.Duration         // notice.Long, but in tests
	Asked   func(api.Pod)         // kube.Options.Asked; set it before Follow
	kube    *kube.Watcher         // nil: the node belongs to no cluster
	leases  *lease.Keeper         // nil: the cluster has no pools for its nodes

	node     string          // this node's name
	core     *daemon.Core    // whose ledger says which owners are there
	releases notice.Releases // that are owed for long; Watch's alone
}

// Rooms are the rooms that a Cluster uses.
type Rooms struct {
	Node    *node.Node
	Ground  *ground.Ground
	Traffic *traffic.Traffic
	Kept    func(ipam.Claim) mode.Mode // modes.Kept
}

// New returns the cluster of a configuration; nil: the node belongs to none.
func New(d *daemon.Core, r Rooms, c *config.Kubernetes, version string) (*Cluster, error) {
	o := peers.Options{Metric: r.Node.Metric, MTU: r.Ground.UplinkMTU, Hops: r.Node.Conn.Hops, Ask: r.Node.Conn.AskAnew, Own: r.Ground.Prefixes, Changed: r.Ground.Reach}
	h := health.Options{
		Mode: r.Kept, Pool: func() (string, error) { return r.Ground.Serves("") }, CIDRs: r.Ground.CIDRs, Equipped: r.Ground.Equipped,
		Claim: r.Traffic.Claim, Unclaim: r.Traffic.Unclaim, Needs: r.Ground.Needs, Adopt: func(addrs []netip.Addr) []netip.Addr { return r.Ground.Pools.Adopt(addrs, d.Clock.Now()) },
	}
	if c == nil {
		return &Cluster{Peers: peers.New(d, o), Nodes: health.New(d, h)}, nil
	}
	o.Routing, o.VXLAN, o.WireGuard = c.Routing, c.VXLAN, c.WireGuard
	h.Health, h.Node = c.Health, c.Node
	cl := &Cluster{Long: notice.Long, node: c.Node, core: d}
	o.Tell = func(ctx context.Context, wg peers.WireGuard) error { return cl.tell(ctx, wg) }
	cl.Peers = peers.New(d, o)
	h.Annotate = func(ctx context.Context, v4, v6 *netip.Addr) error { return cl.annotate(ctx, v4, v6) }
	cl.Nodes = health.New(d, h)
	tell := others{cl.Peers, cl.Nodes}
	client, err := kube.Connect(*c, "berthd/"+version)
	if err != nil {
		return nil, err
	}
	cl.Notices = notice.New(client)
	if c.FromPools() {
		cl.leases = lease.New(lease.Options{
			Node: r.Ground, API: client, Log: d.Log, Now: time.Now, Others: cl.Peers.Count, Ready: func(ready bool) { cl.kube.Ready(ready) },
			Self: func(blocks []netip.Prefix, addrs []netip.Addr) {
				tell.Self(peers.Node{Name: c.Node, CIDRs: blocks, Addresses: addrs, Health: cl.kube.Responder(blocks), WireGuard: cl.kube.Sealed()})
			},
		})
	}
	give := func(ctx context.Context, cidrs []netip.Prefix) error {
		return r.Ground.Give(ctx, config.NodeGiven(cidrs))
	}
	inForce := func() (cidrs []netip.Prefix) {
		for _, l := range r.Ground.Given().Leases {
			cidrs = append(cidrs, l.CIDR)
		}
		return cidrs
	}
	asked := func(pod api.Pod) {
		if cl.Asked != nil {
			cl.Asked(pod)
		}
	}
	cl.kube = kube.New(client, kube.Options{Kubernetes: *c, Log: d.Log, Given: give, InForce: inForce, Others: tell, Leases: cl.leases, Asked: asked})
	return cl, nil
}

// Pools returns who chooses pods' pools; nil: the cluster has no pools for its nodes.
func (c *Cluster) Pools() ground.Cluster {
	if c.leases == nil {
		return nil
	}
	return c.leases
}

// Counted is told that addresses have become used or free.
func (c *Cluster) Counted() {
	if c.leases != nil {
		c.leases.Stir()
	}
}

// Follow follows the cluster until ctx ends. A node that belongs to no cluster, but did once, forgets the cluster's other nodes.
func (c *Cluster) Follow(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.Nodes.Keep(ctx) })
	if c.kube == nil {
		c.Peers.All(nil)
		return
	}
	if c.leases != nil {
		all.Go(func() { c.leases.Keep(ctx) })
	}
	all.Go(func() { c.Notices.Keep(ctx) })
	all.Go(func() { c.Notices.Watch(ctx, c.troubles) })
	c.kube.Keep(ctx)
}

// Health shows which nodes of the cluster this node reaches.
func (c *Cluster) Health() api.ClusterHealth { return c.Nodes.View() }

// Pods asks the cluster's API server which pods this node has.
func (c *Cluster) Pods(ctx context.Context) (api.ClusterPods, error) {
	if c.kube == nil {
		return api.ClusterPods{}, nil
	}
	pods, err := c.kube.Pods(ctx)
	if err != nil {
		return pods, cni.Errorf(cni.CodeTryAgain, "the API server does not say which pods the node has", "%v", err)
	}
	return pods, nil
}

// annotate tells the API server the addresses of this node's responder.
func (c *Cluster) annotate(ctx context.Context, v4, v6 *netip.Addr) error {
	text := func(a *netip.Addr) *string {
		if a == nil {
			return nil
		}
		s := a.String()
		return &s
	}
	return c.kube.Annotate(ctx, map[string]*string{kube.AnnotationHealth4: text(v4), kube.AnnotationHealth6: text(v6)})
}

// tell tells the API server how this node's WireGuard device is reached; zero: it has none.
func (c *Cluster) tell(ctx context.Context, wg peers.WireGuard) error {
	says := map[string]*string{kube.AnnotationWireGuardKey: nil, kube.AnnotationWireGuardPort: nil}
	if wg != (peers.WireGuard{}) {
		port := strconv.Itoa(int(wg.Port))
		says = map[string]*string{kube.AnnotationWireGuardKey: &wg.PublicKey, kube.AnnotationWireGuardPort: &port}
	}
	return c.kube.Annotate(ctx, says)
}

// others hands on what the API server says of nodes.
type others []kube.Others

func (o others) Self(n peers.Node) {
	for _, to := range o {
		to.Self(n)
	}
}

func (o others) All(nodes []peers.Node) {
	for _, to := range o {
		to.All(nodes)
	}
}

func (o others) Put(n peers.Node) {
	for _, to := range o {
		to.Put(n)
	}
}

func (o others) Drop(name string) {
	for _, to := range o {
		to.Drop(name)
	}
}
