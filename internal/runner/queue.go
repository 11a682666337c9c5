package runner

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// backlog is how many requests wait at most. The agent has 64 requests under way, of a few plugins each.
const backlog = 1024

// lane is where requests of one sort wait.
type lane int

const (
	others    lane = iota // ADD, CHECK, GC, STATUS, VERSION
	deletions             // DEL
	lanes
)

// laneOf returns the lane of a verb. GC is none of the deletions: no pod waits for it, and a plugin whose GC hangs must not have the place of a DEL.
func laneOf(verb string) lane {
	if verb == "DEL" {
		return deletions
	}
	return others
}

// Why a request did not get a place.
var (
	errBacklog  = errors.New("too many requests are waiting")
	errStopping = errors.New("berth-runner is stopping")
)

// queue lets a bounded number of plugins run at once, and never two of one container: the specification
// forbids parallel operations on a container (CNI 1.1, section 3, "Lifecycle & Ordering"). A request that
// waits for its container's turn has no place, and nobody else waits for it. It also keeps the order in
// which the requests of a container came, whatever their lanes: an ADD must not run after the DEL that
// was asked for later.
//
// While there are no deletions, all others have all places. Half as many deletions never wait for others: if these have all
// places, the deletions run besides, and others wait until they and the deletions have no more than all places. A
// quarter, at least one, is never deletions'. Within these limits the lanes have their turns one after the other.
//
// In a lane the oldest goes first, but for those whose container has its turn elsewhere. All ADDs of a container are as old as
// its first one (ages.go).
type queue struct {
	places  int
	own     int // as many deletions as this never wait for others
	limit   int // of deletions
	backlog int

	mu      sync.Mutex
	stopped bool
	busy    [lanes]int
	ages    ages
	waiting [lanes]*list.List   // of *place, the oldest first
	turns   map[string][]*place // by container; the first has the turn
	next    lane
}

// place is a request on its way through the queue.
type place struct {
	queue     *queue
	lane      lane
	container string // "": the request is about no container
	about     string // what runs, for those who wait for it
	at        uint64 // its place in line (ages)

	ready chan struct{} // closed when the request may run, or will never run
	err   error         // why it will never run; set before ready is closed
	has   bool          // a place, of those that are bounded
}

func newQueue(places, backlog int) *queue {
	q := &queue{
		places: places, own: places - places/2, limit: places - max(places/4, 1), backlog: backlog,
		turns: map[string][]*place{}, ages: ages{of: map[string]age{}},
	}
	for l := range q.waiting {
		q.waiting[l] = list.New()
	}
	return q
}

// enter waits for the container's turn and for a place. It fails at once with errBacklog if too many
// requests wait, with errStopping once the queue stops, and with the context's error when the context
// ends first. The error names what runs for the container at that time.
func (q *queue) enter(ctx context.Context, verb, container, about string) (*place, error) {
	p := &place{queue: q, lane: laneOf(verb), container: container, about: about, ready: make(chan struct{})}
	q.mu.Lock()
	if q.stopped {
		q.mu.Unlock()
		return nil, errStopping
	}
	if q.waiting[others].Len()+q.waiting[deletions].Len() >= q.backlog {
		q.mu.Unlock()
		return nil, fmt.Errorf("%w: %d", errBacklog, q.backlog)
	}
	p.at = q.ages.next(verb, container)
	at := q.line(p)
	if container != "" {
		q.turns[container] = append(q.turns[container], p)
	}
	q.serve()
	q.mu.Unlock()

	select {
	case <-p.ready:
	case <-ctx.Done():
		if err := q.abandon(ctx, p, at); err != nil {
			return nil, err
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	return p, nil
}

// line puts a request in its lane's line.
func (q *queue) line(p *place) *list.Element {
	w := q.waiting[p.lane]
	for e := w.Back(); e != nil; e = e.Prev() {
		if e.Value.(*place).at <= p.at {
			return w.InsertAfter(p, e)
		}
	}
	return w.PushFront(p)
}

// abandon takes a request out of the queue. A request that has just got its place keeps it: then abandon
// returns nil.
func (q *queue) abandon(ctx context.Context, p *place, at *list.Element) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-p.ready:
		return nil
	default:
	}
	err := ctx.Err()
	if turn := q.turns[p.container]; p.container != "" && turn[0] != p {
		err = fmt.Errorf("%w; %s runs or waits for the same container", err, turn[0].about)
	}
	q.waiting[p.lane].Remove(at)
	q.giveTurn(p)
	q.serve()
	return err
}

// seize gives a container's turn to something that needs no place. The container must have no requests.
func (q *queue) seize(container, about string) *place {
	p := &place{queue: q, container: container, about: about}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turns[container] = append(q.turns[container], p)
	return p
}

// leavePlace gives the place back, and keeps the container's turn.
func (p *place) leavePlace() {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	p.givePlace()
	p.queue.serve()
}

// leave gives back place and turn.
func (p *place) leave() {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	p.givePlace()
	p.queue.giveTurn(p)
	p.queue.serve()
}

// givePlace and giveTurn are called with q.mu held.
func (p *place) givePlace() {
	if p.has {
		p.queue.busy[p.lane]--
		p.has = false
	}
}

func (q *queue) giveTurn(p *place) {
	if p.container == "" {
		return
	}
	rest := slices.DeleteFunc(q.turns[p.container], func(other *place) bool { return other == p })
	if len(rest) == 0 {
		delete(q.turns, p.container)
		return
	}
	q.turns[p.container] = rest
}

// serve gives free places to the lanes in turn, until no lane has a request that can run. The caller
// holds q.mu.
func (q *queue) serve() {
	for skipped := lane(0); skipped < lanes; {
		l := q.next
		q.next = (q.next + 1) % lanes
		first := q.first(l)
		if first == nil {
			skipped++
			continue
		}
		skipped = 0
		p := q.waiting[l].Remove(first).(*place)
		q.busy[l]++
		p.has = true
		close(p.ready)
	}
}

// first returns the first request of a lane that can run now.
func (q *queue) first(l lane) *list.Element {
	if !q.room(l) {
		return nil
	}
	for e := q.waiting[l].Front(); e != nil; e = e.Next() {
		if p := e.Value.(*place); p.container == "" || q.turns[p.container][0] == p {
			return e
		}
	}
	return nil
}

// room reports whether a place is free for a lane.
func (q *queue) room(l lane) bool {
	free := q.busy[others]+q.busy[deletions] < q.places
	if l == others {
		return free
	}
	return q.busy[l] < q.own || free && q.busy[l] < q.limit
}

// stop refuses the requests that wait, and all later ones.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	for _, line := range q.waiting {
		for e := line.Front(); e != nil; e = line.Front() {
			p := line.Remove(e).(*place)
			q.giveTurn(p)
			p.err = errStopping
			close(p.ready)
		}
	}
}
