package agent

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/internal/deletions"
	"github.com/berth-net/berth/internal/patience"
)

// leastSpares is how few spare files there may be for new pods to be attached: so many
// deletions can be written down on a full disk.
const leastSpares = 64

// errNoSpares is what keeps an ADD off a disk on which its DEL may find no room.
var errNoSpares = errors.New("too little room is kept for deletions while no agent runs")

// queue is the agent's end of the deletion queue.
type queue struct {
	*deletions.Queue
	news  chan struct{}         // has a token when there may be something new
	spare atomic.Pointer[error] // why there are too few spare files; nil: there are enough
	turn  chan struct{}         // has a token while somebody adopts, from the look to the commit
	calls patience.Calls        // to the folder, whose file system may hang
	told  atomic.Int64          // how often something new was told of
	done  atomic.Int64          // what told was when all that waited was done
}

// How long the folder may take to answer. What takes longer goes on by itself.
const (
	lookLimit  = 2 * time.Second
	drainLimit = 5 * time.Second
	fillLimit  = 10 * time.Second
)

// Names of calls to the folder.
const (
	looking   = "look"
	draining  = "drain"
	refilling = "refill"
)

// quiet reports whether nothing can wait: all that did was done, and the kernel, which
// asks no file system, has told of nothing since.
func (q *queue) quiet() bool { return q.done.Load() == q.told.Load() }

// hangs says that the folder does not answer; nil: nothing is known of that.
func (q *queue) hangs() error {
	if q.calls.Hang(looking) || q.calls.Hang(draining) {
		return fmt.Errorf("looking for deletions: %w", patience.ErrHangs)
	}
	return nil
}

// openQueue opens the queue and watches it: what is written from now on is
// noticed.
func (a *Agent) openQueue() error {
	q, err := deletions.Open(a.Root)
	if err != nil {
		return err
	}
	if err := q.TakeBack(); err != nil { // it stays where it is, for people
		a.Log.Warn("looking for deletions among those that were set aside", "err", err)
	}
	a.queue.Queue, a.queue.news, a.queue.turn = q, make(chan struct{}, 1), make(chan struct{}, 1)
	a.queue.done.Store(-1)
	err = a.noticed(q, func() {
		a.queue.told.Add(1)
		select {
		case a.queue.news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return errors.Join(err, q.Close())
	}
	return nil
}

// keepSpares keeps room for deletions on a disk that is full by then. While
// there is too little of it no pod is attached: its deletion might fail.
func (a *Agent) keepSpares() {
	n, err := patience.Call(&a.queue.calls, refilling, fillLimit, a.queue.Refill, nil)
	if err == patience.ErrHangs { // drainKey says so to those who attach pods
		a.Log.Warn("keeping room for deletions", "err", err)
		return
	}
	if err != nil {
		a.Log.Warn("keeping room for deletions", "spare files", n, "err", err)
	}
	if err == nil || n >= leastSpares {
		a.queue.spare.Store(nil)
		return
	}
	err = fmt.Errorf("%w: %d spare files, and %d are needed: %w", errNoSpares, n, leastSpares, err)
	a.queue.spare.Store(&err)
}

// spared says why too little room is kept for deletions, or nil.
func (a *Agent) spared() error {
	if err := a.queue.spare.Load(); err != nil {
		return *err
	}
	return nil
}
