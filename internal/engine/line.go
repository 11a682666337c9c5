package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

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
	legs   []leg            // cut off, and not severed yet, in the order of their time
	severs bool             // somebody sees to legs
	// paused is until when the kind has said that nothing of it is to be tried, and
	// strangers how many calls release what nobody owns.
	paused    time.Time
	strangers int
	// severing has a token for each call of Sever under way.
	severing chan struct{}
}

// lane is a part of a line. Both share the kind's Flight, which no call exceeds,
// however long it takes. A hold that hangs whenever it is tried so keeps others
// of its kind once: from then on it waits in the lane apart, which leaves a place
// to the common one, or, of a kind with a single place, comes after all others.
type lane struct {
	queue  []job
	batch  int // holds in a call
	places int // workers: calls at once
	active int // workers but those whose call is overdue
}

// job is the release of one hold: leaving.owner.Holds[i].
type job struct {
	l *leaving
	i int
}

// leg is a hold that gets its cut's second leg if it still waits at a time.
type leg struct {
	job
	due time.Time
}

func newLine(e *Engine, k hold.Kind) *line {
	if k.Batch <= 1 {
		k.Batch = 1
		if k.Flight == 0 {
			k.Flight = singles
		}
	}
	k.Flight = max(k.Flight, 1)
	return &line{
		e: e, kind: k, busy: map[hold.ID]bool{}, hurry: make(chan struct{}, 1), severing: make(chan struct{}, seversAtOnce),
		common: lane{batch: k.Batch}, apart: lane{batch: 1},
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
		e.note(l)
		return
	}
	if !s.severed && n.kind.Sever != nil {
		s.severed = true
		n.legs = append(n.legs, leg{job{l, i}, time.Now().Add(legAfter)})
		n.sever()
	}
	to := &n.common
	if s.trouble != nil && s.trouble.hung {
		to = &n.apart
	}
	to.queue = append(to.queue, job{l, i})
	n.staff()
}

// staff starts a worker for what waits in each lane, if there may be one more: first
// for the lane apart, if only the common one has any (see gives). Engine.mu is held.
func (n *line) staff() {
	lanes := [...]*lane{&n.common, &n.apart}
	if n.common.places > 0 && n.apart.places == 0 {
		lanes = [...]*lane{&n.apart, &n.common}
	}
	for _, a := range lanes {
		if n.may(a) {
			a.places++
			a.active++
			n.e.spawn(func() { n.work(a) })
		}
	}
}

// may reports whether a lane may have one more worker, who finds something to do.
func (n *line) may(a *lane) bool {
	switch {
	case n.busyBy() >= n.kind.Flight || n.first(a) < 0 || n.pauses():
		return false
	case a == &n.common:
		return a.active == 0 || n.worth(a)
	case n.kind.Flight == 1:
		return len(n.common.queue) == 0
	}
	return a.places < n.kind.Flight-1
}

// busyBy returns how many calls of the kind may be under way.
func (n *line) busyBy() int { return n.common.places + n.apart.places + n.strangers }

// first returns the index of the first job of a lane that may be done now, or -1:
// of a kind that does not batch an owner's holds go one after the other.
func (n *line) first(a *lane) int {
	return slices.IndexFunc(a.queue, func(j job) bool { return n.kind.Batch > 1 || !n.busy[j.l.owner.ID] })
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
		for range n.kind.Flight {
			n.staff()
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
		errs, hung := n.release(n.e.ctx, holds)
		there := back()
		n.settle(jobs, errs, hung)
		if !there {
			n.end(a)
			return
		}
		took = n.e.now().Sub(start)
	}
}

// leave notes when a worker is away for longer than a call should take: what waits
// is worth a call beside it then, if the kind's Flight has room for one. back
// reports whether the worker came in time.
func (n *line) leave(a *lane) (back func() bool) {
	there, returned := true, false
	overdue := time.AfterFunc(n.try()/10, func() {
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		if !returned {
			there = false
			a.active--
			n.staff()
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

// end gives back the place of a worker who was overdue.
func (n *line) end(a *lane) {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	a.places--
	n.staff()
}

// next takes the next batch from a lane; none ends the worker, whose place may
// be of use to the other lane.
func (n *line) next(a *lane) []job {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	var jobs []job
	if n.e.ctx.Err() == nil && !n.pauses() && (a.active == 1 || n.worth(a)) && !n.gives(a) {
		jobs = n.take(a)
	}
	if len(jobs) == 0 {
		a.places--
		a.active--
		n.staff()
	}
	return jobs
}

// gives reports whether a worker of a lane has to leave its place to the other
// lane, of which nothing is tried although it may be. staff gives it to that.
func (n *line) gives(a *lane) bool {
	if a == &n.apart {
		return n.common.places == 0 && n.first(&n.common) >= 0
	}
	return a.places > 1 && n.apart.places == 0 && n.first(&n.apart) >= 0
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
	i := n.first(a)
	if i < 0 {
		return nil
	}
	j := a.queue[i]
	n.busy[j.l.owner.ID] = true
	a.queue = append(a.queue[:i:i], a.queue[i+1:]...)
	return []job{j}
}

// try is how long one release may take.
func (n *line) try() time.Duration { return cmp.Or(n.kind.Try, n.e.Try) }

// release gives one batch back, within the limit for one try. hung says that it took
// all of that.
func (n *line) release(ctx context.Context, holds []hold.Hold) (errs []error, hung bool) {
	ctx, cancel := context.WithTimeout(ctx, n.try())
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
			j.l.vacate(n.kind.Name())
		} else {
			if s.trouble.tell() {
				owed = append(owed, Event{Owing, j.l.owner, n.kind.Name(), errs[i]})
			}
			if n.pausesAfter(errs[i]) {
				s.trouble = s.trouble.later(e, j.l.owner, errs[i], n.paused, func() { e.retry(j) })
				s.queued = false
				e.send(j.l, j.i) // into the line that pauses
			} else {
				s.trouble = s.trouble.again(e, j.l.owner, errs[i], func() { e.retry(j) })
			}
			s.trouble.hung = hung
		}
		if e.advance(j.l) {
			done = append(done, j.l)
		}
		e.note(j.l)
	}
	// An owner's other holds may have waited for this one.
	n.staff()
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
