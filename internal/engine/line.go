package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
)

// singles is how many owners' holds of a kind that does not batch are released
// at once, where the kind does not say.
const singles = 32

// line is where the holds of one kind wait for their release. What waits is the
// next batch, so that many owners leaving at once cost one kernel message, and
// a kind that hangs keeps nobody but its own. Guarded by Engine.mu.
type line struct {
	e      *Engine
	kind   hold.Kind
	common lane
	apart  lane             // of holds whose last try took all of its time: one a call
	hurry  chan struct{}    // has a token once somebody waits
	busy   map[hold.ID]bool // owners with a single hold in a worker's hands
}

// lane is a part of a line. Neither lane waits for the other, so that a hold
// which hangs whenever it is tried keeps others once, as long as the engine
// gives a call before it starts the next one beside it.
type lane struct {
	queue         []job
	batch, flight int // holds in a call, and calls at once
	active        int // workers but those that are overdue
}

// job is the release of one hold: leaving.owner.Holds[i].
type job struct {
	l *leaving
	i int
}

func newLine(e *Engine, k hold.Kind) *line {
	if k.Batch <= 1 {
		k.Batch = 1
		if k.Flight == 0 {
			k.Flight = singles
		}
	}
	return &line{
		e: e, kind: k, busy: map[hold.ID]bool{}, hurry: make(chan struct{}, 1),
		common: lane{batch: k.Batch, flight: max(k.Flight, 1)},
		apart:  lane{batch: 1, flight: singles},
	}
}

// send puts a hold into its kind's line, if it is not there yet or released.
// Engine.mu is held.
func (e *Engine) send(l *leaving, i int) {
	s := &l.state[i]
	if s.released || s.queued {
		return
	}
	s.queued = true
	h := l.owner.Holds[i]
	n := e.lines[h.Spec.Kind()]
	if n == nil {
		_, err := e.kind(h)
		s.trouble = &trouble{since: e.since(l.owner), err: err}
		l.note()
		return
	}
	to := &n.common
	if s.trouble != nil && s.trouble.hung {
		to = &n.apart
	}
	to.queue = append(to.queue, job{l, i})
	n.staff(to)
}

// staff starts a worker for what waits, if there may be one more. Engine.mu is
// held.
func (n *line) staff(a *lane) {
	if len(a.queue) > 0 && a.active < a.flight && (a.active == 0 || n.worth(a)) {
		a.active++
		n.e.spawn(func() { n.work(a) })
	}
}

// worth reports whether what waits is worth a call beside those under way: of a
// kind that batches only a full batch is, since a call of few holds keeps
// others from the kernel's locks as long as one of many; and none while
// somebody is being taken, who needs the same locks.
func (n *line) worth(a *lane) bool {
	return len(a.queue) >= a.batch && (a.batch == 1 || !n.e.yields)
}

// lull lets releases go on as they would if nobody were taken, unless somebody
// is within calmAfter. Engine.mu is held.
func (e *Engine) lull() {
	if e.calm != nil {
		e.calm.Reset(calmAfter)
		return
	}
	e.calm = time.AfterFunc(calmAfter, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.takes == 0 {
			e.yields = false
			e.hurryOn()
		}
	})
}

// hurryOn starts the calls that were not worth it beside those who were being
// taken. Engine.mu is held.
func (e *Engine) hurryOn() {
	for _, n := range e.lines {
		for range n.common.flight - n.common.active {
			n.staff(&n.common)
		}
	}
}

// work releases batches until nothing waits.
func (n *line) work(a *lane) {
	var took time.Duration // by the last call
	for {
		n.rest(a, took)
		jobs := n.next(a)
		if len(jobs) == 0 {
			return
		}
		holds := make([]hold.Hold, len(jobs))
		for i, j := range jobs {
			holds[i] = j.l.owner.Holds[j.i]
		}
		start := n.e.now()
		back := n.leave(a)
		errs, hung := n.release(holds)
		there := back()
		n.settle(jobs, errs, hung)
		if !there {
			return
		}
		took = n.e.now().Sub(start)
	}
}

// leave lets another worker have the place of one that is away for longer than
// a call should take. back reports whether it still has its place.
func (n *line) leave(a *lane) (back func() bool) {
	there, returned := true, false
	overdue := time.AfterFunc(n.e.Try/10, func() {
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		if !returned {
			there = false
			a.active--
			n.staff(a)
		}
	})
	return func() bool {
		overdue.Stop()
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		returned = true
		return there
	}
}

// How releases keep out of the way of what is more urgent.
const (
	// calmAfter is how long after an owner was taken others may be: where one pod
	// starts, more do.
	calmAfter = 100 * time.Millisecond
	// breath is how long a kind that is lazy, or yields to those who are being
	// taken, lets others have the locks and the processors before each call. The
	// answer to a DEL is on its way by then, and what many ends at once begin
	// with, their promises and cuts, is over.
	breath = 50 * time.Millisecond
	// jam is how many batches may wait for that.
	jam = 32
)

// rest waits before a call of a kind that is lazy or yields, unless somebody
// waits for a release, or too many do.
func (n *line) rest(a *lane, took time.Duration) {
	n.e.mu.Lock()
	var pause time.Duration
	switch {
	case a != &n.common || n.e.waiting > 0 || len(a.queue) >= jam*a.batch:
	case n.kind.Lazy:
		pause = max(breath, min(9*took, time.Second))
	case n.kind.Yield > 0 && n.e.yields:
		pause = breath
	}
	if pause == 0 {
		n.e.mu.Unlock()
		return
	}
	select {
	case <-n.hurry: // of somebody who does not wait any more
	default:
	}
	n.e.mu.Unlock()
	n.gather(pause)
}

// gather lets holds come together for a kind's next batch, until somebody waits
// for them.
func (n *line) gather(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.hurry:
	case <-n.e.ctx.Done():
	}
}

// press keeps releases from making room for those who are being taken, until
// whoever waits for them leaves.
func (e *Engine) press() (leave func()) {
	e.mu.Lock()
	e.waiting++
	e.mu.Unlock()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.waiting--
	}
}

// hasten ends the pauses of all kinds.
func (e *Engine) hasten() {
	for _, n := range e.lines {
		select {
		case n.hurry <- struct{}{}:
		default:
		}
	}
}

// next takes the next batch from a lane; none ends the worker.
func (n *line) next(a *lane) []job {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	var jobs []job
	if n.e.ctx.Err() == nil && (a.active == 1 || n.worth(a)) {
		jobs = n.take(a)
	}
	if len(jobs) == 0 {
		a.active--
	}
	return jobs
}

func (n *line) take(a *lane) []job {
	if n.kind.Batch > 1 {
		k := min(a.batch, len(a.queue))
		if n.e.yields && n.kind.Yield > 0 {
			k = min(k, n.kind.Yield)
		}
		jobs := a.queue[:k:k]
		a.queue = a.queue[k:]
		return jobs
	}
	for i, j := range a.queue {
		if id := j.l.owner.ID; !n.busy[id] {
			n.busy[id] = true
			a.queue = append(a.queue[:i:i], a.queue[i+1:]...)
			return []job{j}
		}
	}
	return nil
}

// release gives one batch back, within the engine's limit for one try. hung
// says that it took all of that.
func (n *line) release(holds []hold.Hold) (errs []error, hung bool) {
	ctx, cancel := context.WithTimeout(n.e.ctx, n.e.Try)
	defer cancel()
	n.e.observed(n.kind.Name(), "release", len(holds), func() error {
		errs = n.kind.Release(ctx, holds)
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if len(errs) != len(holds) {
		err := fmt.Errorf("kind %s: %d answers for %d holds", n.kind.Name(), len(errs), len(holds))
		errs = make([]error, len(holds))
		for i := range errs {
			errs[i] = err
		}
	}
	return errs, ctx.Err() != nil
}

// settle notes what became of a batch, lets its owners go on, and forgets in
// one commit those that have nothing left.
func (n *line) settle(jobs []job, errs []error, hung bool) {
	e := n.e
	if e.ctx.Err() != nil {
		return // closing: the next engine goes on
	}
	var done []*leaving
	var owed []Event
	e.mu.Lock()
	for i, j := range jobs {
		s := &j.l.state[j.i]
		delete(n.busy, j.l.owner.ID)
		if errs[i] == nil {
			s.released, s.queued, s.trouble = true, false, nil
		} else {
			if s.trouble.tell() {
				owed = append(owed, Event{api.EventOwed, j.l.owner, n.kind.Name(), errs[i]})
			}
			s.trouble = s.trouble.again(e, j.l.owner, errs[i], func() { e.retry(j) })
			s.trouble.hung = hung
		}
		if e.advance(j.l) {
			done = append(done, j.l)
		}
		j.l.note()
	}
	// An owner's other holds may have waited for this one.
	n.staff(&n.common)
	n.staff(&n.apart)
	e.mu.Unlock()
	for _, o := range owed {
		e.event(o.Type, o.Owner, o.Kind, o.Err)
	}
	if len(done) > 0 {
		e.background(func() { e.forget(done) })
	}
}

// retry puts a hold whose release failed into its line again.
func (e *Engine) retry(j job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	j.l.state[j.i].queued = false
	e.send(j.l, j.i)
}
