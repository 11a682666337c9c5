package ledger

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Stats are a ledger's figures since it was opened.
type Stats struct {
	Commits uint64 `json:"commits"` // that succeeded
	Ops     uint64 `json:"ops"`     // of these commits
	Refused uint64 `json:"refused"` // commits of which an op was refused
	Failed  uint64 `json:"failed"`  // commits whose transaction failed

	Transactions uint64        `json:"transactions"`
	Busy         time.Duration `json:"busy"` // time spent in transactions, in nanoseconds
	// Batches counts transactions by their number of commits: place i those with at
	// most 1<<i and more than 1<<(i-1) commits, the last place also those with more.
	Batches [10]uint64 `json:"batches"`

	Owners     int `json:"owners"`
	Names      int `json:"names"`
	Resting    int `json:"resting"` // includes rests that are over
	Tombstones int `json:"tombstones"`

	FileSize  int64 `json:"fileSize"`  // bytes
	FreePages int   `json:"freePages"` // of PageSize bytes, inside the file
	Reserve   int   `json:"reserve"`   // free pages that only deletions may use
	PageSize  int   `json:"pageSize"`
	// ReserveOK says that the file has the reserve and room for another owner. If it
	// does not, the disk is full and Begin is refused.
	ReserveOK bool `json:"reserveOK"`
}

// counters gather Stats.
type counters struct {
	commits, ops, refused, failed atomic.Uint64

	mu    sync.Mutex
	stats Stats // all other figures
	broke error // the store has failed for good
}

// Writable returns nil if an owner can be begun; else ErrFull, ErrFailed or ErrClosed. If
// the disk was full it looks again, for a second at most.
func (l *Ledger) Writable() error {
	c := &l.stats
	c.mu.Lock()
	ok := c.stats.ReserveOK && c.broke == nil
	c.mu.Unlock()
	if ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return l.Commit(ctx, Room())
}

func (c *counters) batch(commits int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Transactions++
	c.stats.Busy += took
	if commits > 0 {
		i := min(bits.Len(uint(commits-1)), len(c.stats.Batches)-1)
		c.stats.Batches[i]++
	}
}

// sizes count what the state has.
type sizes struct{ owners, names, rests, tombs int }

func (l *Ledger) sizes() sizes {
	s := &l.state
	return sizes{len(s.owners), len(s.names), len(s.rests), len(s.tombs)}
}

func (c *counters) set(store *store, n sizes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, r := &c.stats, store.room
	c.broke = store.failed
	s.Owners, s.Names, s.Resting, s.Tombstones = n.owners, n.names, n.rests, n.tombs
	s.PageSize = pageSize
	s.FileSize = int64(r.file) * pageSize
	s.FreePages = r.free + r.tail()
	s.Reserve = reserve(n.owners)
	s.ReserveOK = r.short(n.owners, pagesFor(usualOwner)) <= 0
}

// Stats returns the ledger's figures.
func (l *Ledger) Stats() Stats {
	c := &l.stats
	c.mu.Lock()
	s := c.stats
	c.mu.Unlock()
	s.Commits, s.Ops = c.commits.Load(), c.ops.Load()
	s.Refused, s.Failed = c.refused.Load(), c.failed.Load()
	return s
}
