// Package agent is the node agent: one file a verb (add.go, del.go, check.go,
// gc.go, status.go, audit.go), its life (run.go, start.go, reload.go, remove.go),
// what it does on its own (node.go, deletions.go, watch.go, rinse.go, trim.go), and the list
// of what it can hold (kinds.go).
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/server"
)

// longestAdd is how long after its plugin began an ADD may still be executed;
// the API caps every deadline at it.
const longestAdd = server.MaxDeadline

// Options are what an agent is started with.
type Options struct {
	Root    root.Dir
	Config  *config.Config
	Version string
	Log     *slog.Logger
	// Moved says that it is meant when the network namespace is another one
	// than in this boot's last run: all pods of that run are given up.
	Moved bool
	// Event is told what happens. It must not block.
	Event func(api.Event)
	// Observe is told how long a kind's operation took, for metrics. Optional.
	Observe func(kind, op string, took time.Duration, holds int, err error)
	// Decorate may put something between the engine and what it works with:
	// fault injection in tests. Optional.
	Decorate func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)
}

// Agent attaches and detaches pods of one node. It implements server.Verbs.
type Agent struct {
	Options
	started  time.Time
	born     int64 // when it was opened, CLOCK_BOOTTIME in nanoseconds
	config   atomic.Pointer[config.Config]
	instance string
	first    bool // the instance was minted by this start: no agent has run here before
	groups   stamp.Groups
	metric   uint32          // of the pools' routes
	epoch    string          // boot and netns, as records have them
	clock    *boottime.Clock // what cooldowns go by, here, in the ledger and in the pools

	node
	ledger *ledger.Ledger
	opened os.FileInfo // the ledger's file
	locked *lock       // of the instance; nil: not yet
	engine *engine.Engine
	ipam   *ipam.IPAM
	index  *index
	keys   *keys
	queue  queue
	rinsing

	adopting sync.Map // hold.ID to []netip.Addr: adopted, not in the ledger yet

	hanging sync.Map                    // what of the node's own is being taken, by what it is called
	rules   atomic.Pointer[nft.Ruleset] // what the table was told last; nil: nothing

	uncovered chan struct{}                    // has a token when connections may have begun without the table
	doubted   chan struct{}                    // has a token when the table is not what cuts rely on
	sweeping  chan struct{}                    // holds one: the sweep that is under way
	pools     chan struct{}                    // holds one: who changes which CIDRs are used, or gives some back
	uplinkMTU int                              // the least of the default routes' links; 0: there are none
	lack      atomic.Pointer[map[string]error] // what holdNode could not take, by pool
	doubt     atomic.Bool                      // the last restore or sweep could not take all that is held
}

var _ server.Verbs = (*Agent)(nil)

// applied keeps the views in step with the ledger's commits.
func (a *Agent) applied(c ledger.Change) {
	rested := map[hold.Name]ledger.Rest{}
	for _, r := range c.Rested {
		rested[r.Name] = r
	}
	for _, edit := range c.Owners {
		if edit.Before == nil {
			a.adopting.Delete(edit.After.ID)
		}
		if err := a.index.apply(edit); err != nil {
			a.Log.Error("a record cannot be read", "err", err)
		}
		for _, n := range freed(edit) {
			if addr, err := ipam.ParseName(n); err == nil {
				a.ipam.Free(addr, rested[n].Until)
				a.rests()
			}
		}
	}
}

// freed returns the names that an edit took from an owner.
func freed(e ledger.Edit) []hold.Name {
	if e.Before == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.Before.Names), func(n hold.Name) bool {
		return e.After != nil && slices.Contains(e.After.Names, n)
	})
}

// event tells what happened to an owner, as the API shows it.
func (a *Agent) event(ev engine.Event) { a.tell(string(ev.Type), ev.Owner, ev.Kind, ev.Err) }

func (a *Agent) tell(typ string, o hold.Owner, kind string, err error) {
	if a.Event == nil {
		return
	}
	out := api.Event{Type: typ, Owner: string(o.ID)}
	if err != nil {
		out.Message = kind + ": " + err.Error()
	}
	if rec, ok, _ := attachment.Decode(o); ok { // it may be out of the index by now
		at := describe(&entry{o, rec})
		at.State = eventState[typ]
		out.Attachment = &at
	}
	a.Event(out)
}

var eventState = map[string]string{
	api.EventAttaching: api.StateAttaching, api.EventAttached: api.StateAttached, api.EventDrift: api.StateAttached,
	api.EventReleasing: api.StateReleasing, api.EventReleased: api.StateReleasing, api.EventOwed: api.StateOwed,
}

// mtu returns an attachment's MTU in bytes: the network config's, the agent's,
// the uplinks', or Ethernet's.
func (a *Agent) mtu(c *netconf.Conf) int {
	for _, mtu := range []int{c.MTU, a.config.Load().MTU, a.uplinkMTU} {
		if mtu > 0 {
			return mtu
		}
	}
	return 1500
}

// Sweep mends what drifted and removes what has no owner, once. Of two at once the
// second waits for the first.
func (a *Agent) Sweep(ctx context.Context) {
	select {
	case a.sweeping <- struct{}{}:
		defer func() { <-a.sweeping }()
	case <-ctx.Done():
		return
	}
	if err := a.Drain(ctx); err != nil { // before what a plugin has cut off is taken for drift
		a.Log.Error("deletions wait", "err", err)
	}
	report, err := a.engine.Sweep(ctx)
	a.doubt.Store(err != nil)
	if err != nil {
		a.Log.Warn("sweep", "err", err)
	}
	for _, f := range report.Findings {
		a.taint(f.Hold)
	}
	if len(report.Findings) > 0 {
		a.Log.Info("sweep", "owners", report.Owners, "holds", report.Holds, "findings", len(report.Findings))
	}
	a.keepNode(ctx)
	a.keepSpares()
}

// Close stops the agent's own work and closes the ledger. Pods stay as they
// are.
func (a *Agent) Close() error {
	a.engine.Close()
	var err error
	if bad := a.ledger.Close(); bad != nil {
		err = fmt.Errorf("closing the ledger: %w", bad)
	}
	return errors.Join(err, a.queue.Close(), a.closeKernel())
}

func prefixes(pools []ipam.PoolConfig) []netip.Prefix {
	var ps []netip.Prefix
	for _, p := range pools {
		ps = append(ps, p.CIDRs...)
	}
	return ps
}
