// Package verbs executes what a runtime asks of the agent. Each verb has a file: add.go,
// del.go, check.go, gc.go; status.go is about other plugins alone. All that the verbs know of an
// interface comes from its mode.
package verbs

import (
	"context"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/drain"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/networks"
	"github.com/berth-net/berth/internal/turn"
)

// repeats is how many ADDs of one key may wait for the ADD that has the key's turn. A
// runtime has one ADD under way, and maybe one that it has given up.
const repeats = 8

// Ground is what the agent holds for all pods, and its pools (ground.Ground).
type Ground interface {
	Choose(ctx context.Context, pod *api.Pod, named, who string) (pool string, err error)
	Unserved(pod *api.Pod, pool string, err error)
	Equipped(ctx context.Context, pool string) error
	Deadline() time.Time
	Await(ctx context.Context, pool, who string, deadline time.Time, again bool) bool
	Served(pool, who string)
	Needs(names []hold.Name) []hold.ID
	Under(hold.Owner) []hold.Name
}

// Verbs are the verbs of an agent.
type Verbs struct {
	*daemon.Core
	index  *attachment.Index
	drain  *drain.Drain
	ground Ground
	modes  mode.Modes
	// networks says which networks a pod gets.
	networks *networks.Networks
	open     func(ns.Ref) (ns.Handle, error)
	// keys puts the ADDs of each key in order: they run one after another, as they came. ADDs that
	// wait give back their place among the running requests (turn.Aside), since the pod may decide
	// how long the first ADD takes. A DEL takes no turn: it overtakes the ADDs (see del.go).
	keys turn.Turns[attachment.Key]
	// SayNetworks tells people of the networks of the pod with a first attachment (status.Status). further says that the pod gets further ones.
	SayNetworks func(ctx context.Context, first hold.ID, further bool) error
	// ChangeNetworks says that these networks are being changed until done is called, after SayNetworks.
	ChangeNetworks func(first hold.ID) (done func())
}

// New returns the verbs. open opens the network namespace at a path (node.Node).
func New(d *daemon.Core, x *attachment.Index, q *drain.Drain, g Ground, ms mode.Modes, n *networks.Networks, open func(ns.Ref) (ns.Handle, error)) *Verbs {
	return &Verbs{
		Core: d, index: x, drain: q, ground: g, modes: ms, networks: n, open: open, keys: turn.Turns[attachment.Key]{Most: repeats, Aside: true},
		SayNetworks: func(context.Context, hold.ID, bool) error { return nil }, ChangeNetworks: func(hold.ID) func() { return func() {} },
	}
}
