// Package cluster is what a node's agent does because the node belongs to a cluster: it follows the cluster's API server
// (kube), and keeps the ways to the pods of the other nodes (peers).
package cluster

import (
	"context"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/kube"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/peers"
)

// Cluster is the cluster that a node belongs to, or none.
type Cluster struct {
	Peers *peers.Peers
	kube  *kube.Watcher // nil: the node belongs to no cluster
}

// New returns the cluster of a configuration; nil: the node belongs to none.
func New(d *daemon.Core, n *node.Node, g *ground.Ground, c *config.Kubernetes, version string) (*Cluster, error) {
	o := peers.Options{Metric: n.Metric, MTU: g.UplinkMTU, Hops: n.Conn.Hops, Own: g.Prefixes, Changed: g.Reach}
	if c == nil {
		return &Cluster{Peers: peers.New(d, o)}, nil
	}
	o.Routing, o.VXLAN = c.Routing, c.VXLAN
	p := peers.New(d, o)
	k, err := kube.New(kube.Options{Kubernetes: *c, Agent: "berthd/" + version, Log: d.Log, Given: g.Give, Others: p})
	return &Cluster{Peers: p, kube: k}, err
}

// Follow follows the cluster until ctx ends. A node that belongs to no cluster, but did once, forgets the cluster's other nodes.
func (c *Cluster) Follow(ctx context.Context) {
	if c.kube == nil {
		c.Peers.All(nil)
		return
	}
	c.kube.Keep(ctx)
}
