// Package views turns what the rooms below know into the API's types. It makes what people and
// programs see of attachments, the ledger, the pools and the deletion queue. It changes
// nothing; RetryOwed only asks the engine and the queue to try again.
package views

import (
	"context"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/drain"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/history"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/traffic"
)

// Views shows what an agent knows.
type Views struct {
	*daemon.Core
	Version string
	index   *attachment.Index
	drain   *drain.Drain
	ground  *ground.Ground
	traffic *traffic.Traffic
	modes   mode.Modes
	cluster Cluster
	history *history.History // of attachments that are gone
	// inherited returns records of a former run, by their attachments' ids: the former run wrote
	// these records, and died before its ledger forgot the attachments.
	inherited func() map[string]api.Past
}

// Cluster shows the cluster that the node belongs to, or none (cluster.Cluster).
type Cluster interface {
	Health() api.ClusterHealth  // which nodes of the cluster the agent reaches
	Status() *api.ClusterStatus // nil: there is no cluster
	// Pods asks the API server which pods the node has.
	Pods(context.Context) (api.ClusterPods, error)
}

// New returns the views. version is the agent's version.
func New(d *daemon.Core, version string, x *attachment.Index, q *drain.Drain, g *ground.Ground, t *traffic.Traffic, ms mode.Modes, c Cluster) *Views {
	v := &Views{Core: d, Version: version, index: x, drain: q, ground: g, traffic: t, modes: ms, cluster: c}
	v.openHistory()
	return v
}

// Health shows which nodes of the cluster this node reaches.
func (v *Views) Health() api.ClusterHealth { return v.cluster.Health() }

// ClusterPods asks the cluster's API server which pods this node has.
func (v *Views) ClusterPods(ctx context.Context) (api.ClusterPods, error) { return v.cluster.Pods(ctx) }
