package ledger

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/hold"
)

// Ledger is an open ledger. Its methods may be called concurrently.
type Ledger struct {
	opts     Options
	discover map[string]hold.Kind // the kinds whose Acquire writes into specs, by name

	mu    sync.RWMutex // guards state
	state state

	queue  queue
	store  *store
	stats  counters
	closed sync.Once
	gone   chan struct{} // closed when the writer has ended
	failed chan struct{} // closed when the store has failed for good
	over   bool          // failed is closed; only the writer uses over

	now      time.Time // when look last looked at Options.Clock; only the writer uses now
	boottime int64     // CLOCK_BOOTTIME at that look, in nanoseconds
}

// state is the ledger in memory.
type state struct {
	owners map[hold.ID]*entry
	names  map[hold.Name]hold.ID
	edges  edges
	rests  *packed[rested] // by keyOf
	tombs  *packed[tomb]
	epoch  Epoch
	first  *First // nil: not known
	seq    uint64 // number of the last transaction

	quarantine kept
}

func newState() state {
	return state{
		owners: map[hold.ID]*entry{},
		names:  map[hold.Name]hold.ID{},
		edges:  edges{},
		rests:  newPacked(restForm),
		tombs:  newPacked(tombForm),
	}
}

// rested is a name's rest in memory, where there may be tens of thousands.
type rested struct {
	freed int64 // by Options.Clock, Unix nanoseconds
	span  span  // the rest as the file has it
}

// over reports whether the rest is over, by Options.Clock.
func (r rested) over(now time.Time) bool {
	return !now.Before(wallTime(r.freed).Add(r.span.length()))
}

func (r rested) rest(n hold.Name) Rest {
	freed := wallTime(r.freed)
	return Rest{n, freed, freed.Add(r.span.length())}
}

// tomb is a Tombstone in memory, without its key.
type tomb struct {
	boot           string
	started, until int64
}

func (t tomb) of(key string) Tombstone { return Tombstone{key, t.boot, t.started, t.until} }

func (s *state) resting() []Rest {
	rests := slices.Grow([]Rest(nil), s.rests.len())
	for key, r := range s.rests.view().all() {
		n, _ := nameOf(key)
		rests = append(rests, r.rest(n))
	}
	return rests
}

func (s *state) tombstones() []Tombstone {
	tombs := slices.Grow([]Tombstone(nil), s.tombs.len())
	for key, t := range s.tombs.view().all() {
		tombs = append(tombs, t.of(key))
	}
	return tombs
}

// Open opens the ledger at Options.Path, or creates it. It reads and checks every record. A damaged
// ledger is a *DamagedError, a ledger that another process has open is ErrLocked, and a ledger that
// a newer version has written is ErrNewer. In all these cases Open leaves the file as it
// is. Open writes a ledger of version 1 anew, and keeps the old file beside the new one
// (formerPath).
func Open(opts Options) (*Ledger, error) {
	if opts.Rest == nil {
		opts.Rest = func(hold.Name) time.Duration { return 0 }
	}
	if opts.Applied == nil {
		opts.Applied = func(Change) {}
	}
	if opts.Clock == nil {
		opts.Clock = boottime.NewClock(nil, nil)
	}
	store, state, err := openStore(opts)
	if err != nil {
		return nil, fmt.Errorf("opening ledger: %w", err)
	}
	l := &Ledger{
		opts: opts, discover: map[string]hold.Kind{}, state: state, store: store,
		gone: make(chan struct{}), failed: make(chan struct{}),
	}
	for _, k := range opts.Kinds {
		if k.Discovers {
			l.discover[k.Name()] = k
		}
	}
	l.queue.wake = make(chan struct{}, 1)
	l.stats.set(store, l.sizes())
	go l.write()
	return l, nil
}

// Close waits for the transaction that is being written, refuses all commits that wait with
// ErrClosed, and closes the file.
func (l *Ledger) Close() error {
	var err error
	l.closed.Do(func() {
		l.queue.close()
		<-l.gone
		err = l.store.close()
	})
	return err
}

// Failed returns a channel that is closed once every commit fails with ErrFailed. The
// program can only end then, and open the ledger anew.
func (l *Ledger) Failed() <-chan struct{} { return l.failed }

// Owner returns an owner.
func (l *Ledger) Owner(id hold.ID) (hold.Owner, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	e, ok := l.state.owners[id]
	if !ok {
		return hold.Owner{}, false
	}
	return e.owner.Clone(), true
}

// Owners returns all owners, sorted by ID.
func (l *Ledger) Owners() []hold.Owner {
	l.mu.RLock()
	defer l.mu.RUnlock()
	owners := make([]hold.Owner, 0, len(l.state.owners))
	for _, id := range slices.Sorted(maps.Keys(l.state.owners)) {
		owners = append(owners, l.state.owners[id].owner.Clone())
	}
	return owners
}

// Needers returns the IDs of the owners that need an owner, in no particular order.
func (l *Ledger) Needers(id hold.ID) []hold.ID {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.AppendSeq(make([]hold.ID, 0, len(l.state.edges[id])), maps.Keys(l.state.edges[id]))
}

// Holder returns the owner that has a name.
func (l *Ledger) Holder(n hold.Name) (hold.ID, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	id, ok := l.state.names[n]
	return id, ok
}

// Resting returns the names that rest, or that have rested and were not claimed since, in
// times of Options.Clock. The name that was freed first comes first.
func (l *Ledger) Resting() []Rest {
	l.mu.RLock()
	rests := l.state.resting()
	l.mu.RUnlock()
	sortRests(rests)
	return rests
}

// Tombstone returns the tombstone of a key, if it has not expired.
func (l *Ledger) Tombstone(key string) (Tombstone, bool) {
	now := l.opts.Clock.Boottime()
	l.mu.RLock()
	defer l.mu.RUnlock()
	t, ok := l.state.tombs.get(key)
	if !ok || t.until < now {
		return Tombstone{}, false
	}
	return t.of(key), true
}

// Epoch returns the epoch that was set last. A new ledger's is the zero value.
func (l *Ledger) Epoch() Epoch {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.epoch
}

// First returns when the first agent of the state folder began, if this ledger is the
// first one there.
func (l *Ledger) First() (f First, known bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.state.first == nil {
		return First{}, false
	}
	return *l.state.first, true
}

// InPlace returns nil if the file at Options.Path is the one that the ledger writes.
// Otherwise it says why not: somebody has put another file there, or has taken the file away.
func (l *Ledger) InPlace() error { return l.store.inPlace(l.opts.Path) }

// SetEpoch writes the epoch. A new epoch ends tombstones of other boots.
func (l *Ledger) SetEpoch(e Epoch) error {
	return l.Commit(context.Background(), Enter(e))
}

// Quarantine returns the quarantine that was set last, even if it is over.
func (l *Ledger) Quarantine() Quarantine {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.quarantine.Quarantine
}

func sortRests(rests []Rest) {
	slices.SortFunc(rests, func(a, b Rest) int {
		return cmp.Or(a.Freed.Compare(b.Freed), compareNames(a.Name, b.Name))
	})
}

func compareNames(a, b hold.Name) int {
	return cmp.Or(strings.Compare(a.Space, b.Space), strings.Compare(a.Name, b.Name))
}
