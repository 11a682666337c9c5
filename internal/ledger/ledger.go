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

// Options say how a ledger is opened.
type Options struct {
	Path  string     // of the file; its folder must exist
	Kinds hold.Kinds // to decode specs with
	// Rest says how long a freed name rests before it can be claimed again.
	// Nil or 0: it is free at once.
	Rest func(hold.Name) time.Duration
	// Applied is called in the writer's goroutine after each transaction, in
	// commit order, before its commits answer. It may read the ledger, but not
	// commit; what it is given is not to be changed.
	Applied func(Change)
	// Now is wall time, for rests; nil: time.Now.
	Now func() time.Time
	// Boottime is CLOCK_BOOTTIME in nanoseconds, for tombstones; nil: the
	// kernel's.
	Boottime func() int64
}

// Change is what one transaction has changed.
type Change struct {
	Owners []Edit      // in commit order; one owner may appear more than once
	Rested []Rest      // names that rest now, sorted by name
	Woken  []hold.Name // names that rested and are claimed now, sorted
}

// Edit is a change of one owner. Nil Before: begun; nil After: forgotten.
type Edit struct{ Before, After *hold.Owner }

// Rest is a freed name that cannot be claimed until Until. Afterwards it stays
// listed, so that the name which has rested longest can be chosen. Both are
// wall time, which goes on while the machine is off: a clock that is set back
// makes a rest longer, by no more than the rest itself once the ledger is
// opened again.
type Rest struct {
	Name  hold.Name `json:"name"`
	Freed time.Time `json:"freed"`
	Until time.Time `json:"until"`
}

// Tombstone says that requests for Key which started before Started in the
// boot Boot come too late (Unburied). Started and Until (when it expires) are
// CLOCK_BOOTTIME in nanoseconds. Boot is whatever the caller tells boots apart
// by.
type Tombstone struct {
	Key     string `json:"key"`
	Boot    string `json:"boot"`
	Started int64  `json:"started"`
	Until   int64  `json:"until"`
}

// Epoch is what the identities of network namespaces hold in: one boot, and
// the agent's own namespace in it.
type Epoch struct {
	Boot  string `json:"boot"` // /proc/sys/kernel/random/boot_id
	Netns struct {
		Dev uint64 `json:"dev"`
		Ino uint64 `json:"ino"`
		ID  uint64 `json:"id,omitempty"` // SO_NETNS_COOKIE
	} `json:"netns"`
}

// Ledger is an open ledger. Its methods may be called at once.
type Ledger struct {
	opts     Options
	discover map[string]hold.Kind // kinds whose Acquire writes into specs

	mu    sync.RWMutex // guards state
	state state

	queue  queue
	store  *store
	stats  counters
	closed sync.Once
	gone   chan struct{} // closed when the writer has ended
}

// state is the ledger in memory.
type state struct {
	owners   map[hold.ID]*entry
	names    map[hold.Name]hold.ID
	children map[hold.ID][]hold.ID // of owners that have any
	rests    map[hold.Name]Rest
	tombs    map[string]Tombstone
	epoch    Epoch
}

func newState() state {
	return state{
		owners:   map[hold.ID]*entry{},
		names:    map[hold.Name]hold.ID{},
		children: map[hold.ID][]hold.ID{},
		rests:    map[hold.Name]Rest{},
		tombs:    map[string]Tombstone{},
	}
}

// startOver lets names whose rest begins in the future, since the clock was
// set back, rest from now on. The records stay as they are.
func (s *state) startOver(now time.Time) {
	for n, r := range s.rests {
		if r.Freed.After(now) {
			s.rests[n] = Rest{n, now, now.Add(r.Until.Sub(r.Freed))}
		}
	}
}

// Open opens the ledger at Options.Path, or creates it. Every record is read
// and checked: damage is a *DamagedError, a ledger that another process has
// open ErrLocked, one written by a newer version ErrNewer. In all these cases
// the file is left as it is.
func Open(opts Options) (*Ledger, error) {
	if opts.Rest == nil {
		opts.Rest = func(hold.Name) time.Duration { return 0 }
	}
	if opts.Applied == nil {
		opts.Applied = func(Change) {}
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Boottime == nil {
		opts.Boottime = boottime.Now
	}
	store, state, err := openStore(opts.Path, opts.Kinds)
	if err != nil {
		return nil, fmt.Errorf("opening ledger: %w", err)
	}
	state.startOver(plain(opts.Now()))
	l := &Ledger{
		opts: opts, discover: map[string]hold.Kind{}, state: state, store: store, gone: make(chan struct{}),
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

// Close waits for the transaction in hand, refuses everything else that waits
// with ErrClosed, and closes the file.
func (l *Ledger) Close() error {
	var err error
	l.closed.Do(func() {
		l.queue.close()
		<-l.gone
		err = l.store.close()
	})
	return err
}

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

// Children returns the IDs of the owners whose parent an owner is, in no order.
func (l *Ledger) Children(id hold.ID) []hold.ID {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Clone(l.state.children[id])
}

// Holder returns who has a name.
func (l *Ledger) Holder(n hold.Name) (hold.ID, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	id, ok := l.state.names[n]
	return id, ok
}

// Resting returns the names that rest or have rested and were not claimed
// since, the longest freed first.
func (l *Ledger) Resting() []Rest {
	l.mu.RLock()
	rests := slices.Collect(maps.Values(l.state.rests))
	l.mu.RUnlock()
	sortRests(rests)
	return rests
}

// Tombstone returns the tombstone of a key, if it has not expired.
func (l *Ledger) Tombstone(key string) (Tombstone, bool) {
	now := l.opts.Boottime()
	l.mu.RLock()
	defer l.mu.RUnlock()
	t, ok := l.state.tombs[key]
	if !ok || t.Until < now {
		return Tombstone{}, false
	}
	return t, true
}

// Epoch returns the epoch that was set last, the zero one in a new ledger.
func (l *Ledger) Epoch() Epoch {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state.epoch
}

// SetEpoch writes the epoch. With a new one, tombstones of other boots end.
func (l *Ledger) SetEpoch(e Epoch) error {
	return l.Commit(context.Background(), setEpoch{e})
}

func sortRests(rests []Rest) {
	slices.SortFunc(rests, func(a, b Rest) int {
		return cmp.Or(a.Freed.Compare(b.Freed), compareNames(a.Name, b.Name))
	})
}

func compareNames(a, b hold.Name) int {
	return cmp.Or(strings.Compare(a.Space, b.Space), strings.Compare(a.Name, b.Name))
}
