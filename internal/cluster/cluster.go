// Package cluster is what a node's agent does because the node belongs to a cluster: it follows the cluster's API server
// (kube), keeps the node's blocks of the cluster's pools (lease), and the ways to the pods of the other nodes (peers).
package cluster

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/kube"
	"github.com/berth-net/berth/internal/lease"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/peers"
)

// Cluster is the cluster that a node belongs to, or none.
type Cluster struct {
	Peers  *peers.Peers
	kube   *kube.Watcher // nil: the node belongs to no cluster
	leases *lease.Keeper // nil: the cluster has no pools for its nodes
}

// New returns the cluster of a configuration; nil: the node belongs to none.
func New(d *daemon.Core, n *node.Node, g *ground.Ground, c *config.Kubernetes, version string) (*Cluster, error) {
	o := peers.Options{Metric: n.Metric, MTU: g.UplinkMTU, Hops: n.Conn.Hops, Own: g.Prefixes, Changed: g.Reach}
	if c == nil {
		return &Cluster{Peers: peers.New(d, o)}, nil
	}
	o.Routing, o.VXLAN = c.Routing, c.VXLAN
	cl := &Cluster{Peers: peers.New(d, o)}
	client, err := kube.Connect(*c, "berthd/"+version)
	if err != nil {
		return nil, err
	}
	if c.FromPools() {
		cl.leases = lease.New(lease.Options{
			Node: g, API: client, Log: d.Log, Now: time.Now, Others: cl.Peers.Count, Ready: func(ready bool) { cl.kube.Ready(ready) },
			Self: func(blocks []netip.Prefix, addrs []netip.Addr) {
				cl.Peers.Self(peers.Node{Name: c.Node, CIDRs: blocks, Addresses: addrs})
			},
		})
	}
	give := func(ctx context.Context, cidrs []netip.Prefix) error { return g.Give(ctx, config.NodeGiven(cidrs)) }
	cl.kube = kube.New(client, kube.Options{Kubernetes: *c, Log: d.Log, Given: give, Others: cl.Peers, Leases: cl.leases})
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
	if c.kube == nil {
		c.Peers.All(nil)
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	if c.leases != nil {
		all.Go(func() { c.leases.Keep(ctx) })
	}
	c.kube.Keep(ctx)
}
