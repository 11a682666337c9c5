// Package views turns what the rooms below know into the API's types. It makes what people and
// programs see of attachments, the ledger, the pools and the deletion queue. It changes
// nothing; RetryOwed only asks the engine and the queue to try again.
package views

import (
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
	health  func() api.ClusterHealth
	history *history.History // of attachments that are gone
	// inherited returns records of a former run, by their attachments' ids: the former run wrote
	// these records, and died before its ledger forgot the attachments.
	inherited func() map[string]api.Past
}

// New returns the views. version is the agent's version, and health shows which nodes of a cluster the agent reaches.
func New(d *daemon.Core, version string, x *attachment.Index, q *drain.Drain, g *ground.Ground, t *traffic.Traffic, ms mode.Modes, health func() api.ClusterHealth) *Views {
	v := &Views{Core: d, Version: version, index: x, drain: q, ground: g, traffic: t, modes: ms, health: health}
	v.openHistory()
	return v
}

// Health shows which nodes of the cluster this node reaches.
func (v *Views) Health() api.ClusterHealth { return v.health() }
