// Package rebuild is about pods that no ledger knows. It refuses to begin or to open a ledger
// that does not know of the pods on the node (lost.go, other.go, orphans.go), and makes a
// ledger anew from what the kernel tells of them (rebuild.go).
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/drain"
	"github.com/berth-net/berth/internal/ground"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/root"
)

// Rebuilt describes a ledger that was made anew.
type Rebuilt struct {
	Kept  string    // where the former ledger is now; "" if there was none
	Until time.Time // when the addresses that nobody has can be given out; zero: at once
	Pods  []mode.Found
	Lost  []string // the facts that the kernel tells of none of the pods
}

// lostForAll lists the facts that no link's stamp says.
var lostForAll = []string{
	"pods' names: attachments are known by network, container and interface alone",
	"pods' DNS settings: a repeated ADD answers without them",
	"when attachments were made: they count as made now",
	"which addresses rest: every address that no pod has rests for a full cooldown",
	"tombstones: if a DEL overtook its ADD, and the ADD arrives only now, the agent executes it",
}

// Rebuild compares a daemon's ledger with the links of its pods.
type Rebuild struct {
	*daemon.Daemon
	node   *node.Node
	drain  *drain.Drain
	ground *ground.Ground
	finder mode.Finder
	ledger ledger.Options
}

// New returns a Rebuild for the ledger that o describes. finder is the mode that finds
// attachments without a ledger.
func New(d *daemon.Daemon, n *node.Node, q *drain.Drain, g *ground.Ground, finder mode.Finder, o ledger.Options) *Rebuild {
	return &Rebuild{Daemon: d, node: n, drain: q, ground: g, finder: finder, ledger: o}
}

// Possible returns why the ledger of a root cannot be made anew; nil: no reason is known. The caller
// calls Possible before it opens anything.
func Possible(dir root.Dir) error {
	// Somebody may have taken away the ledger of an agent that runs. Everything that the agent
	// still writes into that ledger would be missing in the new one.
	if err := server.Unserved(dir); err != nil {
		return fmt.Errorf("%w, and has the ledger open: stop it first", err)
	}
	if _, err := os.Stat(dir.Instance()); err != nil && !remembered(dir) {
		return fmt.Errorf("%w: nothing says which links are this agent's: %w", daemon.ErrInstanceLost, err)
	}
	return nil
}

// remembered reports whether the root's epoch marker has the instance id.
func remembered(dir root.Dir) bool {
	_, instance, err := daemon.ReadMarker(dir)
	return err == nil && instance != ""
}

// Anew makes a ledger anew, from the stamps of the links in the kernel, if the ledger is
// lost, damaged or older than the pods. The pods stay as they are. It is an error if an agent
// runs, or if the ledger is intact.
func (r *Rebuild) Anew(ctx context.Context) (*Rebuilt, error) {
	if err := r.refuseOther(); err != nil {
		return nil, err
	}
	if err := r.replaceable(); err != nil {
		return nil, err
	}
	if err := r.Alone(); err != nil {
		return nil, err
	}
	if err := r.SameEpoch(); err != nil {
		return nil, err
	}
	now := r.Wall()
	pods, err := r.finder.Survey(r.Epoch, now)
	if err != nil {
		return nil, err
	}
	pods = mode.Joined(pods, now)
	ops := []ledger.Op{ledger.Enter(r.ThisEpoch()), r.ground.Quarantine()}
	for _, p := range pods {
		ops = append(ops, ledger.Begin(p.Owner))
		if !p.Owner.Wanted() {
			ops = append(ops, ledger.Releasing(p.Owner.ID, now))
		}
	}
	routes, err := r.ground.Former(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range routes {
		ops = append(ops, ledger.Begin(o))
	}
	out := &Rebuilt{Pods: pods, Lost: slices.Clone(lostForAll)}
	if rest := r.ground.Pools.Longest(); rest > 0 {
		out.Until = now.Add(rest)
	}
	if out.Kept, err = ledger.Replace(r.ledger, ops); err != nil {
		return nil, err
	}
	return out, nil
}

// replaceable refuses to replace a ledger that is intact and knows of all pods.
func (r *Rebuild) replaceable() error {
	path := r.Root.Ledger()
	if there, err := ledgerThere(path); !there || err != nil {
		return err
	}
	have, err := ledger.Read(path, r.node.Kinds())
	var damaged *ledger.DamagedError
	if errors.As(err, &damaged) {
		return nil
	}
	if err != nil {
		return err
	}
	owned := map[hold.ID]bool{}
	for _, o := range have.Owners {
		owned[o.ID] = true
	}
	newer, err := r.unknown(func(id hold.ID) bool { return owned[id] })
	if err == nil {
		newer, err = r.undoomed(newer)
	}
	if err == nil && len(newer) == 0 {
		err = fmt.Errorf("%s is intact, and there is nothing to rebuild", path)
	}
	return err
}
