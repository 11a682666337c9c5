// Package daemon does what every daemon of Berth's does around an engine. It decides which
// process serves a root (instance.go, lock.go), in which boot and network namespace
// (epoch.go). It opens the ledger and the engine (daemon.go), runs the daemon from its
// start to its end (life.go), and keeps its socket there (reach.go). It knows no pod.
package daemon

import (
	"cmp"
	"context"
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
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/trace"
	"github.com/berth-net/berth/internal/turn"
)

// When places a request in time (server.When).
type When = server.When

// LongestRequest is how long the daemon may still execute a request, counted from when the request's
// client ran. The server caps every request's deadline there.
const LongestRequest = server.MaxDeadline

// Options are the options of a daemon.
type Options struct {
	Root root.Dir
	Log  *slog.Logger
	// Owners is what operators call the daemon's owners, such as "pods"; "" is "owners".
	Owners string
	// Moved says that the network namespace may differ from the namespace of this boot's last run,
	// and that the state folder may be new, because somebody means it so. The daemon then gives
	// up all owners of that run.
	Moved bool
	// Event is called with each event. It must not block. Optional.
	Event func(api.Event)
	// Observe is called after each operation of a kind, for metrics. Optional.
	Observe func(kind, op string, took time.Duration, holds int, err error)
	// Meter counts what else happens, for metrics. Optional.
	Meter Meter
	// Tracer makes spans of what is asked, and of what follows; nil: none are made.
	Tracer *trace.Tracer
	// Decorate may put something between the engine and its ledger and kinds, such as
	// fault injection in tests. Optional.
	Decorate func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)
}

// Meter counts what happens in a daemon, for metrics. Its methods must not block.
type Meter interface {
	Repaired(kind string)          // a thing that others had changed is mended
	Found(findings map[string]int) // an audit or a sweep has ended; findings has the number of its findings of each type
	Reloaded(err error)            // a configuration was read; err says why it is not in force
}

// unmetered is the Meter of a daemon that has none.
type unmetered struct{}

func (unmetered) Repaired(string)      {}
func (unmetered) Found(map[string]int) {}
func (unmetered) Reloaded(error)       {}

// Place says where a daemon lives, and by which clocks.
type Place struct {
	Netns    ns.Ref           // the network namespace
	Boot     string           // the boot's id
	Wall     func() time.Time // the wall clock, which may be set at any time: for people
	Boottime func() int64     // CLOCK_BOOTTIME, ns
	// Sole makes this process the only one that serves an instance here, and returns the lock;
	// that is held, if held is the lock already. nil: it is the only one anyway.
	Sole func(instance string, dir root.Dir, held *Lock) (*Lock, error)
}

// Core is what the rooms of a daemon share: where the daemon lives, its ledger and its
// engine. Its fields do not change once the engine is open, but for Doubt.
type Core struct {
	Options
	Place
	Started  time.Time
	Instance string
	Epoch    string          // boot and network namespace, as records write them
	Clock    *boottime.Clock // the clock of cooldowns
	Ledger   *ledger.Ledger
	Engine   *engine.Engine

	// Doubt says that the last restore or sweep failed in part: something may be
	// missing.
	Doubt atomic.Bool

	calls patience.Calls // to the ledger's folder
}

// inPlace is how long Displaced waits for the ledger's folder.
const inPlace = 500 * time.Millisecond

// Displaced says that somebody has taken the ledger's file away from the running daemon, or has put
// another file in its place: nobody will read again what the daemon writes from then on. Displaced
// returns nil if the file is in its place, or if the file's folder hangs.
func (c *Core) Displaced() error {
	_, err := patience.Call(&c.calls, c.Root.Ledger(), inPlace, func() (none struct{}, err error) {
		return none, c.Ledger.InPlace()
	}, nil)
	if err == nil || err == patience.ErrHangs {
		return nil
	}
	return fmt.Errorf("%w; all that the agent writes now is lost when it ends", err)
}

// Daemon is one process that serves a root.
type Daemon struct {
	Core
	born     int64           // when New was called, CLOCK_BOOTTIME, ns
	first    bool            // this start has made the instance id: no daemon has run here before
	locked   *Lock           // the lock of the instance; nil: not locked
	lost     bool            // the last sweep has found that the ledger's file is not in its place
	unmarked bool            // the marker of this epoch could not be written
	notified <-chan struct{} // closed when the supervisor was told of the last state that notify was called with
	deaf     error           // why there is no socket yet; later only keepReachable uses deaf
	sweeping turn.One        // whoever has taken it sweeps
}

// New makes a daemon's folders, and opens nothing else. It cannot do without the state folder. A
// run folder that it could not make is in the way of the marker and the socket: the daemon says so
// then, and tries again.
func New(o Options, p Place) (*Daemon, error) {
	o.Owners = cmp.Or(o.Owners, "owners")
	if o.Meter == nil {
		o.Meter = unmetered{}
	}
	d := &Daemon{
		Core: Core{Options: o, Place: p, Started: time.Now(), Clock: boottime.NewClock(p.Wall, p.Boottime)},
		born: p.Boottime(),
	}
	d.Epoch = EpochText(d.ThisEpoch())
	if err := os.MkdirAll(o.Root.State(), 0o700); err != nil {
		return nil, fmt.Errorf("making the agent's folders: %w", err)
	}
	_ = os.MkdirAll(o.Root.Run(), 0o700)
	return d, nil
}

// Views follow the ledger: the ledger calls each function of Follow with each change. Rest returns
// how long a name that is freed now must rest.
type Views struct {
	Rest   func(hold.Name) time.Duration
	Follow []func(ledger.Change)
}

// Follow makes the list of functions that follow a ledger.
func Follow(views ...func(ledger.Change)) []func(ledger.Change) { return views }

// LedgerOptions returns the options of this daemon's ledger.
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
	d.Ledger, err = ledger.Open(o)
	return err
}

// Hooks are functions that the engine calls (engine.Options).
type Hooks struct {
	Event    func(engine.Event)
	Ending   func([]engine.Event)
	Homeless func(hold.Owner) bool
	Going    func(hold.ID) (bool, error)
}

// OpenEngine makes the engine on the ledger.
func (d *Daemon) OpenEngine(kinds hold.Kinds, h Hooks) {
	var l engine.Ledger = d.Ledger
	if d.Decorate != nil {
		l, kinds = d.Decorate(d.Ledger, kinds)
	}
	d.Engine = engine.New(engine.Options{
		Ledger: l, Kinds: kinds, Clock: d.Clock, Observe: d.Observe, Tracer: newSpans(d.Tracer), Event: h.Event, Ending: h.Ending,
		Homeless: h.Homeless, Going: h.Going,
	})
}

// Resume does the part of a restore that verbs have to wait for (engine.Resume). It returns
// the function that does the rest.
func (d *Daemon) Resume(ctx context.Context) (missing engine.Missing, mend func(context.Context)) {
	missing, err := d.Engine.Resume(ctx, hold.Glance()) // a glance is enough: the kind hears of changes after the last list
	if err != nil {
		d.Log.Warn("could not restore everything", "err", err)
	}
	d.Doubt.Store(err != nil)
	return missing, func(ctx context.Context) {
		if err := d.Engine.Mend(ctx, missing); err != nil && ctx.Err() == nil {
			d.Doubt.Store(true)
			d.Log.Warn("could not restore all that "+d.Owners+" lack", "err", err)
		}
	}
}

// Round is what a sweep does beside the engine's sweep: Before comes first, and After comes last.
type Round struct {
	Before func(context.Context)
	After  func(context.Context)
}

// Sweep mends what has drifted, removes what has no owner, and calls the functions of r. If
// another sweep is under way, it waits for that one to end first.
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
		d.Log.Warn("a sweep could not do everything", "err", err)
	}
	d.Meter.Found(count(report.Findings))
	if len(report.Findings) > 0 {
		d.Log.Info("sweep", "owners", report.Owners, "holds", report.Holds, "findings", len(report.Findings))
	}
	d.sayDisplaced()
	r.After(ctx)
}

// sayDisplaced says once that the ledger's file is not in its place, and once that it is again. Its
// caller has d.sweeping.
func (d *Daemon) sayDisplaced() {
	err := d.Displaced()
	switch {
	case err != nil && !d.lost:
		d.Log.Warn("somebody has taken the ledger's file away: move it back, or restart berthd, which says what to do", "err", err)
	case err == nil && d.lost:
		d.Log.Info("the ledger's file is in its place again")
	}
	d.lost = err != nil
}

// count returns how many findings there are of each type.
func count(findings []engine.Finding) map[string]int {
	n := map[string]int{}
	for _, typ := range engine.FindingTypes() {
		n[string(typ)] = 0
	}
	for _, f := range findings {
		n[string(f.Type)]++
	}
	return n
}

// Close stops the daemon's own work and closes the ledger. All holds stay as they are.
func (d *Daemon) Close() error {
	if d.Engine != nil {
		d.Engine.Close()
	}
	return d.closeLedger()
}

// Unlock gives the lock of the instance back. It comes last of all: until no request of the
// daemon can reach the kernel any more, no other daemon may serve the instance.
func (d *Daemon) Unlock() error { return d.locked.release() }

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
