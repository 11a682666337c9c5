// Package daemon is what every daemon of Berth's does around an engine: which process
// serves a root (instance.go, lock.go), where and when that is (epoch.go), its ledger and
// its engine (daemon.go), its life from the first start to the last sweep (life.go), and
// the socket by which others reach it (reach.go). It knows no pod.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/turn"
)

// When places a request in time (server.When).
type When = server.When

// LongestRequest is how long after its client ran a request may still be executed; the server
// caps every deadline at it.
const LongestRequest = server.MaxDeadline

// Options are what a daemon is started with.
type Options struct {
	Root root.Dir
	Log  *slog.Logger
	// Moved says that it is meant when the network namespace is another one
	// than in this boot's last run, or the state folder a new one: all pods of that run are
	// given up.
	Moved bool
	// Event is told what happens. It must not block. Optional.
	Event func(api.Event)
	// Observe is told how long a kind's operation took, for metrics. Optional.
	Observe func(kind, op string, took time.Duration, holds int, err error)
	// Decorate may put something between the engine and what it works with:
	// fault injection in tests. Optional.
	Decorate func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)
}

// Place is where a daemon lives, and by which clocks.
type Place struct {
	Netns    ns.Ref           // the network namespace
	Boot     string           // the boot's id
	Wall     func() time.Time // the wall clock, which may be set at any time: for people
	Boottime func() int64     // CLOCK_BOOTTIME, ns
	// Sole makes this process the only one that serves an instance here; nil: it is.
	Sole func(instance string, dir root.Dir) (*Lock, error)
}

// Core is what the rooms of a daemon share: where it lives, its ledger and its engine. Its
// fields do not change once the engine is open.
type Core struct {
	Options
	Place
	Started  time.Time
	Instance string
	Epoch    string          // boot and network namespace, as records have them
	Clock    *boottime.Clock // what cooldowns go by
	Ledger   *ledger.Ledger
	Engine   *engine.Engine

	// Doubt says that the last restore or sweep could not take all that is held.
	Doubt atomic.Bool

	opened os.FileInfo // the ledger's file
}

// Daemon is one process that serves a root.
type Daemon struct {
	Core
	born     int64           // when New was called, CLOCK_BOOTTIME in nanoseconds
	first    bool            // this start has minted the instance: no daemon has run here before
	locked   *Lock           // of the instance; nil: not yet
	unmarked bool            // the marker of this epoch could not be written
	notified <-chan struct{} // closed when the supervisor was told the last that notify had to tell
	sweeping turn.One        // of the sweep that is under way
}

// New makes a daemon's folders, and opens nothing else.
func New(o Options, p Place) (*Daemon, error) {
	d := &Daemon{
		Core: Core{Options: o, Place: p, Started: time.Now(), Clock: boottime.NewClock(p.Wall, p.Boottime)},
		born: p.Boottime(),
	}
	d.Epoch = EpochText(d.ThisEpoch())
	for _, dir := range []string{o.Root.State(), o.Root.Run()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making the agent's folders: %w", err)
		}
	}
	return d, nil
}

// Views follow the ledger. Rest says for how long a name that is freed now must rest.
type Views struct {
	Rest   func(hold.Name) time.Duration
	Follow []func(ledger.Change)
}

// Follow lists what follows a ledger.
func Follow(views ...func(ledger.Change)) []func(ledger.Change) { return views }

// LedgerOptions are those of this daemon's ledger.
func (d *Daemon) LedgerOptions(kinds hold.Kinds, v Views) ledger.Options {
	return ledger.Options{
		Path: d.Root.Ledger(), Kinds: kinds, Rest: v.Rest, Clock: d.Clock, Boot: d.Boot,
		Applied: func(c ledger.Change) {
			for _, follow := range v.Follow {
				follow(c)
			}
		},
	}
}

// OpenLedger opens the ledger, or creates it. See ledger.Open for the errors.
func (d *Daemon) OpenLedger(o ledger.Options) (err error) {
	if d.Ledger, err = ledger.Open(o); err != nil {
		return err
	}
	d.opened, err = os.Stat(o.Path)
	return err
}

// LedgerTaken says why the file that the ledger writes is not the one at its path any
// more; nil: it is.
func (c *Core) LedgerTaken() error {
	now, err := os.Stat(c.Root.Ledger())
	if err == nil && !os.SameFile(now, c.opened) {
		err = errors.New("another file is in its place")
	}
	return err
}

// Hooks are what the engine asks and tells (engine.Options).
type Hooks struct {
	Event    func(engine.Event)
	Homeless func(hold.Owner) bool
	Going    func(hold.Owner) bool
}

// OpenEngine makes the engine on the ledger.
func (d *Daemon) OpenEngine(kinds hold.Kinds, h Hooks) {
	var l engine.Ledger = d.Ledger
	if d.Decorate != nil {
		l, kinds = d.Decorate(d.Ledger, kinds)
	}
	d.Engine = engine.New(engine.Options{
		Ledger: l, Kinds: kinds, Clock: d.Clock, Observe: d.Observe, Event: h.Event, Homeless: h.Homeless, Going: h.Going,
	})
}

// Resume brings the world to what the ledger says, as far as that keeps verbs waiting
// (engine.Resume), and returns what mends the rest.
func (d *Daemon) Resume(ctx context.Context) (mend func(context.Context)) {
	missing, err := d.Engine.Resume(ctx, hold.Glance()) // what changes from the list on is heard
	if err != nil {
		d.Log.Warn("restoring", "err", err)
	}
	d.Doubt.Store(err != nil)
	return func(ctx context.Context) {
		if err := d.Engine.Mend(ctx, missing); err != nil && ctx.Err() == nil {
			d.Doubt.Store(true)
			d.Log.Warn("restoring what pods lack", "err", err)
		}
	}
}

// Round is a sweep with what belongs to it. Found is told of each hold that was not as it
// should be.
type Round struct {
	Before func(context.Context)
	Found  func(hold.Hold)
	After  func(context.Context)
}

// Sweep does a round: it mends what drifted and removes what has no owner. Of two at once
// the second waits for the first.
func (d *Daemon) Sweep(ctx context.Context, r Round) {
	done, err := d.sweeping.Take(ctx)
	if err != nil {
		return
	}
	defer done()
	r.Before(ctx)
	report, err := d.Engine.Sweep(ctx)
	d.Doubt.Store(err != nil)
	if err != nil {
		d.Log.Warn("sweep", "err", err)
	}
	for _, f := range report.Findings {
		r.Found(f.Hold)
	}
	if len(report.Findings) > 0 {
		d.Log.Info("sweep", "owners", report.Owners, "holds", report.Holds, "findings", len(report.Findings))
	}
	r.After(ctx)
}

// Close stops the daemon's own work and closes the ledger. What is held stays as it is.
func (d *Daemon) Close() error {
	if d.Engine != nil {
		d.Engine.Close()
	}
	return errors.Join(d.closeLedger(), d.locked.release())
}

// closeLedger closes the ledger, if it is open.
func (d *Daemon) closeLedger() error {
	if d.Ledger == nil {
		return nil
	}
	if err := d.Ledger.Close(); err != nil {
		return fmt.Errorf("closing the ledger: %w", err)
	}
	return nil
}
