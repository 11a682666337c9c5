package server

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Lane is where requests of one sort wait. The queue serves the requests of a lane in the
// order in which they came, and the lanes in turn, so that a burst of one verb does not
// hold up the others.
type Lane struct {
	Name      string // as metrics call it
	Deletions bool   // its requests are deletions, which have places of their own
}

// lanesOf lists the lanes of routes, in the order in which they are first named.
func lanesOf(routes []Route) (lanes []Lane) {
	for _, r := range routes {
		if r.Lane != (Lane{}) && !slices.Contains(lanes, r.Lane) {
			lanes = append(lanes, r.Lane)
		}
	}
	return lanes
}

// Why a request did not get a place. The texts say agent, since clients know that word.
var (
	errBacklog   = errors.New("too many requests are waiting")
	errStopping  = errors.New("the agent is stopping")
	errRestoring = errors.New("the agent is restoring what its ledger says")
)

// queue lets a bounded number of requests execute at once, and a bounded number wait. It
// begins shut: every request waits until open is called.
//
// A quarter of the places is for deletions alone, and a quarter for all other requests. So a
// deletion never waits for other requests, even if they hang, and other requests do not wait for a
// burst of deletions.
type queue struct {
	places  int // requests that execute at once
	limit   int // places that deletions may take at most; all other requests together may take as many
	backlog int // requests that wait at most

	mu      sync.Mutex
	opened  bool
	stopped bool
	busy    int // places taken
	leaving int // places that deletions have taken
	waiting int
	lines   map[Lane]*list.List // of *waiter
	lanes   []Lane              // in the order of their turns
	next    int                 // index of the lane whose turn it is
}

// waiter is a request without a place yet.
type waiter struct {
	ready chan struct{} // closed when the request has its place, or will never get one
	err   error         // set before ready is closed
}

func newQueue(places, backlog int, lanes ...Lane) *queue {
	q := &queue{places: places, limit: places - places/4, backlog: backlog, lines: map[Lane]*list.List{}, lanes: lanes}
	for _, l := range lanes {
		q.lines[l] = list.New()
	}
	return q
}

// enter waits for a place; leave gives the place back. enter fails at once with errBacklog
// if too many requests wait. It fails with errStopping once the queue stops, and with the
// context's error when the context ends first (joined with errRestoring if the queue has
// not been opened yet).
func (q *queue) enter(ctx context.Context, l Lane) (leave func(), _ error) {
	q.mu.Lock()
	if q.stopped {
		q.mu.Unlock()
		return nil, errStopping
	}
	if q.opened && q.waiting == 0 && q.room(l) {
		q.take(l)
		q.mu.Unlock()
		return func() { q.leave(l) }, nil
	}
	if q.waiting >= q.backlog {
		q.mu.Unlock()
		return nil, fmt.Errorf("%w: %d", errBacklog, q.backlog)
	}
	w := &waiter{ready: make(chan struct{})}
	at := q.lines[l].PushBack(w)
	q.waiting++
	q.serve()
	q.mu.Unlock()

	select {
	case <-w.ready:
	case <-ctx.Done():
		if err := q.abandon(ctx, l, at); err != nil {
			return nil, err
		}
	}
	if w.err != nil {
		return nil, w.err
	}
	return func() { q.leave(l) }, nil
}

// abandon takes a waiter out of its line. If the queue has just served the waiter, the
// waiter keeps its place: abandon returns nil.
func (q *queue) abandon(ctx context.Context, l Lane, at *list.Element) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-at.Value.(*waiter).ready:
		return nil
	default:
	}
	q.lines[l].Remove(at)
	q.waiting--
	if !q.opened {
		return errors.Join(errRestoring, ctx.Err())
	}
	return ctx.Err()
}

// room reports whether a request of lane l can have a place now.
func (q *queue) room(l Lane) bool {
	if l.Deletions {
		return q.busy < q.places && q.leaving < q.limit
	}
	return q.busy < q.places && q.busy-q.leaving < q.limit
}

func (q *queue) take(l Lane) {
	q.busy++
	if l.Deletions {
		q.leaving++
	}
}

func (q *queue) leave(l Lane) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy--
	if l.Deletions {
		q.leaving--
	}
	q.serve()
}

// serve gives free places to the first of each lane in turn, until no lane has a request
// for which there is room. The caller holds q.mu.
func (q *queue) serve() {
	for skipped := 0; q.opened && q.waiting > 0 && skipped < len(q.lanes); {
		l := q.lanes[q.next]
		q.next = (q.next + 1) % len(q.lanes)
		first := q.lines[l].Front()
		if first == nil || !q.room(l) {
			skipped++
			continue
		}
		skipped = 0
		q.lines[l].Remove(first)
		q.waiting--
		q.take(l)
		close(first.Value.(*waiter).ready)
	}
}

// open lets requests execute from now on.
func (q *queue) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.opened = true
	q.serve()
}

// isOpen reports whether open has been called.
func (q *queue) isOpen() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.opened
}

// stop refuses the requests that wait, and all later ones. A request that has a place keeps
// it.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	for _, line := range q.lines {
		for e := line.Front(); e != nil; e = line.Front() {
			line.Remove(e)
			q.waiting--
			w := e.Value.(*waiter)
			w.err = errStopping
			close(w.ready)
		}
	}
}

// load returns how many requests execute, and how many wait in each lane.
func (q *queue) load() (busy int, waiting map[Lane]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting = map[Lane]int{}
	for l, line := range q.lines {
		waiting[l] = line.Len()
	}
	return q.busy, waiting
}
