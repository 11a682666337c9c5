// Package verbs has what a runtime asks of the agent, a file each: add.go, del.go,
// check.go, gc.go. What the verbs know of an interface they ask its mode.
package verbs

import (
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/drain"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/mode"
)

// Verbs are the verbs of an agent.
type Verbs struct {
	*daemon.Core
	index    *attachment.Index
	drain    *drain.Drain
	ground   *ground.Ground
	modes    mode.Modes
	identify func(ns.Ref) (ns.Ref, error)
	keys     *keys
}

// New returns the verbs. identify says what is at a namespace's path (node.Node).
func New(d *daemon.Core, x *attachment.Index, q *drain.Drain, g *ground.Ground, ms mode.Modes, identify func(ns.Ref) (ns.Ref, error)) *Verbs {
	return &Verbs{Core: d, index: x, drain: q, ground: g, modes: ms, identify: identify, keys: newKeys()}
}
