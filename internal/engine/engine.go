// Package engine takes what owners hold, and gives it back whatever happens.
//
// The engine knows nothing of attachments: an owner is a list of holds, and each verb is a walk
// over that list. Open take.go for the way in, change.go for changes of an owner that has been
// taken, release.go for the way out, line.go for how one call releases holds of many owners, and
// restore.go and sweep.go for what the engine does when nobody asks.
//
// Some words recur. An owner's release is promised once the ledger says that the owner
// is releasing. An owner stands while its holds have to be there: it is wanted, or
// an owner that needs it still stands. An owner is doomed if it could not be taken
// and its release is not promised yet.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/turn"
)

// ErrOvertaken says that an owner was released while it was being taken.
var ErrOvertaken = errors.New("a release has overtaken it")

// RefusedError says that a Take or a Change did not begin: nothing has changed.
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
	// Event is called with each event. The events of one owner come in their order.
	// Event must not block. Optional.
	Event func(Event)
	// Observe is called after each operation of a kind, with the time that it took
	// and the number of its holds: op is acquire, verify, release, cut, sever or
	// find. Optional.
	Observe func(kind, op string, took time.Duration, holds int, err error)
	// Tracer is told of each operation on a hold. Optional.
	Tracer Tracer
	// Homeless reports whether an owner's home has ended for certain, as all network
	// namespaces do with a reboot. The engine does not take again what such an owner
	// lacks, but releases the owner. Optional.
	Homeless func(hold.Owner) bool
	// Going reports whether somebody has asked for an owner's release in a way that
	// the ledger does not know of yet. The engine does not take again what such an
	// owner lacks. If Going cannot tell, it returns an error that says why; the engine then waits
	// for another occasion. Optional.
	Going func(hold.ID) (bool, error)
	// Ending is called with Released events before the ledger forgets their owners, once in this
	// run for each owner, and the engine waits until Ending returns: so a record that Ending writes
	// does not get lost if the program dies afterwards. If the program dies before, or the commit
	// fails, the owners are still in the ledger. Optional.
	Ending func([]Event)
	// Clock is the ledger's clock, by which freed names rest. If it is nil, the engine
	// makes one of its own.
	Clock *boottime.Clock
	// Try limits one Release of a kind; 0 is 30 s.
	Try time.Duration
	// Look limits one Verify and one Find of a kind; a look that has not ended by then
	// has seen nothing. Mending limits how long the engine takes holds of one owner
	// again, and how long Depart waits. 0 is 10 s for each.
	Look, Mending time.Duration
	// Backoff is the wait after the first failed release; the wait doubles with each further
	// failure up to MaxBackoff, with jitter. 0 is 250 ms, and 1 min.
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
	turns      turn.Turns[hold.ID] // an owner's turn, to take, repair or cut it; has a lock of its own
	courses    map[hold.ID]*course // owners whose turn somebody has
	takes      int                 // how many of courses are a Take
	calm       *time.Timer         // fires a while after the last Take; nil: there was no Take yet
	yields     bool                // releases let Takes go first
	waiting    int                 // how many callers wait for releases
	leaving    map[hold.ID]*leaving
	departures map[hold.ID]*departure // under way, from the wait for the owner's turn to the cut
	places     chan struct{}          // has a token for each running cut of owners that depart together
	// doomed are the owners that could not be taken and whose release is not promised
	// yet: none of their holds is taken again. The trouble is that of the promise; nil: no try to
	// promise the release has failed.
	doomed    map[hold.ID]*trouble
	asked     map[hold.ID]asked      // owners whose release this run has seen promised, or whose Take it has seen fail
	unused    map[hold.ID]bool       // owners that could not be taken, and that nobody can have reached
	unwritten map[hold.ID]hold.Owner // what an owner's holds have discovered and the ledger lacks
	changing  map[hold.ID]bool       // a Change is under way
	over      map[hold.ID][]string   // an owner's things whose end was told as an event (Ended)
	late      map[string]int         // by kind: looks that go on after their time
	overdue   map[string]time.Time   // by kind: when a look last took too long
	suspect   map[string]bool        // things without an owner, seen by the last sweep
	now       func() time.Time
}

// New returns an engine that does nothing yet: Restore lets it go on with what
// the ledger says.
func New(o Options) *Engine {
	o.Try = cmp.Or(o.Try, 30*time.Second)
	o.Look = cmp.Or(o.Look, 10*time.Second)
	o.Mending = cmp.Or(o.Mending, 10*time.Second)
	o.Backoff = cmp.Or(o.Backoff, 250*time.Millisecond)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, time.Minute)
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
		asked:      map[hold.ID]asked{},
		unused:     map[hold.ID]bool{},
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

// lastCalls is how long Close waits for calls of kinds that go on after their context
// has ended.
const lastCalls = 5 * time.Second

// Close stops what the engine does on its own, and waits for it to end, at most for
// lastCalls if a kind hangs. The ledger knows what is not released yet, and the next
// engine goes on with it.
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
	patience.Ends(&e.work, lastCalls)
}

// errClosing is the answer of an engine after Close: it begins nothing any more.
var errClosing = errors.New("the engine is closing")

// background runs f in a goroutine that Close waits for, and returns true. If the engine
// is closing already, it does not run f, and returns false.
func (e *Engine) background(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spawn(f)
}

// spawn is background for callers that hold Engine.mu.
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

// observed runs one operation of a kind, and calls Observe afterwards.
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
