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
	Commits uint64 `json:"commits"` // commits that succeeded
	Ops     uint64 `json:"ops"`     // ops of these commits
	Refused uint64 `json:"refused"` // commits in which an op was refused
	Failed  uint64 `json:"failed"`  // commits whose transaction failed

	Transactions uint64        `json:"transactions"`
	Busy         time.Duration `json:"busy"` // time spent in transactions, in nanoseconds
	// Batches counts transactions by their number of commits: place i counts transactions with at
	// most 1<<i and more than 1<<(i-1) commits; the last place also counts transactions with more.
	Batches [10]uint64 `json:"batches"`

	Owners     int `json:"owners"`
	Names      int `json:"names"`
	Resting    int `json:"resting"` // includes rests that are over
	Tombstones int `json:"tombstones"`

	FileSize int64 `json:"fileSize"` // bytes
	Free     int64 `json:"free"`     // bytes of FileSize that the next transactions go into
	Reserve  int64 `json:"reserve"`  // bytes of Free that are kept for deletions
	// Rewrites counts how often the file was written anew, without the records that nobody needs
	// any more (prune).
	Rewrites uint64 `json:"rewrites"`
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

// Writable returns nil if an owner can be begun; else ErrFull, ErrFailed or ErrClosed. If the disk
// was full, Writable looks for room again, for a second at most.
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
	return sizes{len(s.owners), len(s.names), s.rests.len(), s.tombs.len()}
}

func (c *counters) set(store *store, n sizes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.stats
	c.broke = store.failed
	s.Owners, s.Names, s.Resting, s.Tombstones = n.owners, n.names, n.rests, n.tombs
	s.FileSize, s.Free, s.Reserve = store.size, int64(store.free())*sectorSize, int64(reserve(store.exits))*sectorSize
	s.Rewrites = store.rewrites
	s.ReserveOK = store.short(reserve(store.exits+usualExit)+sectors(bytesFor(usualOwner))) <= 0
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
