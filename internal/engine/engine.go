// Package engine takes what owners hold, and gives it back whatever happens.
//
// It knows nothing of attachments: an owner is a list of holds, and each verb
// is a walk over that list. Open take.go for the way in, change.go for what comes
// later, release.go for the way out, line.go for how releases of many owners become
// one, and restore.go and sweep.go for what happens when nobody asks.
package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/turn"
)

// ErrOvertaken says that an owner was released while it was being taken.
var ErrOvertaken = errors.New("overtaken by a release")

// RefusedError says that an owner was not even begun: nothing has changed.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// Ledger is what the engine needs of a ledger.
type Ledger interface {
	Commit(ctx context.Context, ops ...ledger.Op) error
	Owner(id hold.ID) (hold.Owner, bool)
	Owners() []hold.Owner
	Needers(id hold.ID) []hold.ID
}

// Options are an engine's parts and limits.
type Options struct {
	Ledger Ledger
	Kinds  hold.Kinds
	// Event is told what happens, in the order of each owner. It must not
	// block. Optional.
	Event func(Event)
	// Observe is told how long a kind's operation took, for how many holds:
	// op is acquire, verify, release, cut, sever or find. Optional.
	Observe func(kind, op string, took time.Duration, holds int, err error)
	// Homeless reports owners whose home has ended for certain, as all network
	// namespaces do with a reboot: what they lack is not taken again, they are
	// released. Optional.
	Homeless func(hold.Owner) bool
	// Going reports owners whose release was asked for in a way that the ledger
	// does not know of yet: what they lack is not taken again. Optional.
	Going func(hold.Owner) bool
	// Clock is the ledger's, by which freed names rest; nil: one of its own.
	Clock *boottime.Clock
	// Try limits one Release of a kind; 0 is 30 s.
	Try time.Duration
	// Look limits one Verify and one Find of a kind, and Mending what is taken again
	// of one owner; 0 is 10 s. A look that has not ended by then has seen nothing.
	Look, Mending time.Duration
	// Backoff is the wait after the first failed release; it doubles with each
	// up to MaxBackoff, with jitter. 0 is 250 ms, and 1 min.
	Backoff, MaxBackoff time.Duration
}

// Engine takes and releases owners. All methods may be called at once.
type Engine struct {
	Options
	lines map[string]*line
	began time.Time
	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	work  sync.WaitGroup // goroutines of the engine's own

	mu         sync.Mutex
	turns      turn.Turns[hold.ID] // of who takes, repairs or cuts an owner; has a lock of its own
	courses    map[hold.ID]*course
	takes      int         // of courses: how many are being taken
	calm       *time.Timer // fires when nobody has been taken for a while; nil: nobody was yet
	yields     bool        // releases let those go first who are being taken
	waiting    int         // how many wait for releases
	leaving    map[hold.ID]*leaving
	departures map[hold.ID]*departure // under way, from the wait for the owner's lock to the cut
	places     chan struct{}          // has a token for each cut of those that depart together
	// doomed are owners that could not be taken: nothing of them is taken again.
	// The trouble is of their promise; nil: it has not failed.
	doomed    map[hold.ID]*trouble
	unwritten map[hold.ID]hold.Owner // what their holds have discovered is not in the ledger yet
	changing  map[hold.ID]bool       // a Change is under way
	over      map[hold.ID][]string   // things that have come to their end, and somebody was told
	late      map[string]int         // by kind: looks that go on after their time
	overdue   map[string]time.Time   // by kind: when a look last took too long
	suspect   map[string]bool        // things without an owner, seen by the last sweep
	now       func() time.Time
}

// New returns an engine that does nothing yet: Restore lets it go on with what
// the ledger says.
func New(o Options) *Engine {
	if o.Try == 0 {
		o.Try = 30 * time.Second
	}
	if o.Look == 0 {
		o.Look = 10 * time.Second
	}
	if o.Mending == 0 {
		o.Mending = 10 * time.Second
	}
	if o.Backoff == 0 {
		o.Backoff = 250 * time.Millisecond
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = time.Minute
	}
	if o.Clock == nil {
		o.Clock = boottime.NewClock(nil, nil)
	}
	e := &Engine{
		Options:    o,
		lines:      map[string]*line{},
		courses:    map[hold.ID]*course{},
		leaving:    map[hold.ID]*leaving{},
		departures: map[hold.ID]*departure{},
		places:     make(chan struct{}, cutsAtOnce),
		doomed:     map[hold.ID]*trouble{},
		unwritten:  map[hold.ID]hold.Owner{},
		changing:   map[hold.ID]bool{},
		over:       map[hold.ID][]string{},
		late:       map[string]int{},
		overdue:    map[string]time.Time{},
		suspect:    map[string]bool{},
		now:        time.Now,
		began:      time.Now(),
	}
	e.ctx, e.stop = context.WithCancel(context.Background())
	for _, k := range o.Kinds {
		e.lines[k.Name()] = newLine(e, k)
	}
	return e
}

// lastCalls is how long Close waits for kinds that do not hear that their time is
// up.
const lastCalls = 5 * time.Second

// Close stops what the engine does on its own and waits for it to end, but not for
// ever for a kind that hangs. What is not released yet is in the ledger, and the
// next engine goes on with it.
func (e *Engine) Close() {
	e.stop()
	e.mu.Lock()
	if e.calm != nil {
		e.calm.Stop()
	}
	for _, l := range e.leaving {
		l.troubles(func(_ hold.Hold, t *trouble) { t.stop() })
	}
	for _, t := range e.doomed {
		if t != nil {
			t.stop()
		}
	}
	e.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		e.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(lastCalls):
	}
}

// errClosing is the answer of an engine that begins nothing any more.
var errClosing = errors.New("the engine is closing")

// background runs f as work of the engine's own, which Close waits for, and reports
// true; if the engine is closing already, it does not.
func (e *Engine) background(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spawn(f)
}

// spawn is background with Engine.mu held. It reports whether f runs.
func (e *Engine) spawn(f func()) bool {
	if e.ctx.Err() != nil {
		return false
	}
	e.work.Go(f)
	return true
}

func (e *Engine) event(typ EventType, o hold.Owner, kind string, err error) {
	if e.Event != nil {
		e.Event(Event{Type: typ, Owner: o, Kind: kind, Err: err})
	}
}

// observed runs one operation of a kind and tells Observe how it went.
func (e *Engine) observed(kind, op string, holds int, f func() error) error {
	start := e.now()
	err := f()
	if e.Observe != nil {
		e.Observe(kind, op, e.now().Sub(start), holds, err)
	}
	return err
}

// kind returns the kind of a hold, or an error that names what is missing.
func (e *Engine) kind(h hold.Hold) (hold.Kind, error) {
	if l, ok := e.lines[h.Spec.Kind()]; ok {
		return l.kind, nil
	}
	return hold.Kind{}, fmt.Errorf("%s: this program does not know the kind %q", h, h.Spec.Kind())
}
