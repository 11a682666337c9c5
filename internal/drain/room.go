package drain

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/patience"
)

// leastSpares is the least number of spare files with which new pods are attached. That many
// deletions can be written down on a full disk. A node of more pods needs one for each of them.
const leastSpares = 64

// errNoSpares refuses an ADD because its DEL might find no room on the disk.
var errNoSpares = errors.New("there is too little room for deletions while no agent runs")

// room is what the agent knows of the spare files, so that an ADD need not ask the folder.
type room struct {
	few    chan struct{}         // has a token when there should be more spare files
	filled atomic.Bool           // spare files have been made since the start, as far as they could be
	stuck  atomic.Bool           // the last refill failed or hangs: the next sweep tries again, and no ADD does
	have   atomic.Int64          // how many spare files there were after the last refill that ended in time
	failed atomic.Pointer[error] // why that refill could not make all spare files; nil: it made all
	adding atomic.Int64          // ADDs under way, whose pods the ledger may lack

	mu   sync.Mutex
	goal int // how many spare files the last refill was to reach
}

// margin is how many more spare files than pods a refill makes, so that one refill serves many ADDs.
// The margin also serves DELs of pods that were never attached.
func margin(pods int) int { return max(leastSpares, pods/4) }

// scarce reports whether more spare files should be made for so many pods.
func scarce(spares, pods int) bool { return spares < max(deletions.Spares, pods+margin(pods)/2) }

// aim returns how many spare files the next refill is to reach. The goal stays as it is while it fits
// the number of pods, so that pods which come and go have no files made.
func (r *room) aim(pods int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	want := max(deletions.Spares, pods+margin(pods))
	if scarce(r.goal, pods) || r.goal > 2*want {
		r.goal = want
	}
	return r.goal
}

// KeepRoom makes spare files at the start, and later whenever they become scarce or deletions have
// used some, until ctx ends.
func (d *Drain) KeepRoom(ctx context.Context) {
	for ctx.Err() == nil {
		d.KeepSpares()
		select {
		case <-ctx.Done():
		case <-d.room.few:
		}
	}
}

// KeepSpares makes spare files, which keep room for the deletions of all attached pods on a disk that
// becomes full. If it cannot, the agent attaches no pod whose deletion might fail (Spared).
func (d *Drain) KeepSpares() {
	r := &d.room
	defer r.filled.Store(true)
	goal := r.aim(d.index.Wanted())
	n, err := 0, error(nil)
	for n < goal && err == nil {
		n, err = patience.Call(&d.calls, refilling, fillLimit, func() (int, error) { return d.Refill(goal) }, nil)
	}
	r.stuck.Store(err != nil)
	if err == patience.ErrHangs { // Key refuses ADDs meanwhile
		d.Log.Warn("could not keep room for deletions", "err", err)
		return
	}
	if err != nil {
		d.Log.Warn("could not keep room for deletions", "spare files", n, "err", err)
	}
	r.have.Store(int64(n))
	if err == nil {
		r.failed.Store(nil)
		return
	}
	r.failed.Store(&err)
}

// Spared returns why the deletion of one more pod might find no room on the disk, or nil. It asks
// nothing of the disk. While more spare files are being made, there is room on the disk: Spared
// returns an error only if the last refill failed, and has left too few for the attached pods, the
// ADDs under way and one more.
func (d *Drain) Spared() error {
	r := &d.room
	pods, spares := d.index.Wanted(), int(r.have.Load())
	if err := r.failed.Load(); err != nil {
		if need := max(leastSpares, pods+max(1, int(r.adding.Load()))); spares < need {
			return fmt.Errorf("%w: there are %d spare files, but %d are needed: %w", errNoSpares, spares, need, *err)
		}
		return nil
	}
	if r.filled.Load() && !r.stuck.Load() && scarce(spares, pods) {
		d.refill()
	}
	return nil
}

// refill has KeepRoom look for missing spare files.
func (d *Drain) refill() {
	select {
	case d.room.few <- struct{}{}:
	default: // KeepRoom is about to look
	}
}

// Adding notes that an ADD begins, until it calls done. Spared counts ADDs under way, because many at
// once could otherwise share the last spare file.
func (d *Drain) Adding() (done func()) {
	d.room.adding.Add(1)
	return func() { d.room.adding.Add(-1) }
}

// Filling reports whether the first spare files since the start are still to be made, or more of them
// because there are more pods. The agent makes them when it serves already, because a disk may take
// long for them.
func (d *Drain) Filling() bool {
	r := &d.room
	return !r.filled.Load() || !r.stuck.Load() && scarce(int(r.have.Load()), d.index.Wanted())
}
