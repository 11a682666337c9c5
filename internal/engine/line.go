package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// singles is how many holds of a kind that does not batch are released at once, each of
// another owner, if the kind does not say how many (hold.Kind.Flight).
const singles = 32

// line is where the holds of one kind wait for their release. A worker takes what waits
// there as its next batch, so that many owners that leave at once cost one kernel message.
// Each kind has its own line, so that a kind that hangs delays no other. Engine.mu guards
// the line.
type line struct {
	e      *Engine
	kind   hold.Kind
	common lane
	apart  lane             // holds whose last try took all of its time: one in each call
	hurry  chan struct{}    // gets a token when a caller waits for releases: the token ends a pause (gather)
	busy   map[hold.ID]bool // if the kind does not batch: owners whose hold is being released
	legs   []leg            // holds that are cut off and not severed yet, the earliest due first
	severs bool             // a goroutine severs the holds in legs
	// paused is the time before which nothing of the kind is to be tried, as the kind has
	// said. strangers is how many calls release things that have no owner.
	paused    time.Time
	strangers int
	// doubt says that the kind has paused, and that it has answered each probe since, if any, with
	// another pause. probe is the call under way that the other calls wait for; nil: there is none.
	doubt bool
	probe *probe
	// severing has a token for each call of Sever under way.
	severing chan struct{}
}

// lane is one of the two parts of a line. Both lanes share the kind's Flight: no more calls than
// that are under way, however long a call takes. A hold that hangs whenever it is tried delays the
// others of its kind only once: from then on it waits in the lane apart. The lane apart always
// leaves a place to the common lane. If the kind has only one place, the lane apart gets it when
// nothing else waits.
type lane struct {
	queue  []job
	batch  int // how many holds one call takes
	places int // workers, each of which makes one call at a time
	active int // workers whose call is not overdue
}

// job is the release of one hold: leaving.owner.Holds[i].
type job struct {
	l *leaving
	i int
}

// leg is a hold that gets the second leg of its cut (sever.go) at the time due, if the hold is not
// released by then.
type leg struct {
	job
	due time.Time
}

func newLine(e *Engine, k hold.Kind) *line {
	if k.Batch <= 1 {
		k.Batch = 1
		k.Flight = cmp.Or(k.Flight, singles)
	}
	k.Flight = max(k.Flight, 1)
	return &line{
		e: e, kind: k, busy: map[hold.ID]bool{}, hurry: make(chan struct{}, 1), severing: make(chan struct{}, seversAtOnce),
		common: lane{batch: k.Batch}, apart: lane{batch: 1},
	}
}

// send puts a hold into its kind's line, unless it is there already or is released.
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

// staff starts a worker for each lane that has work and a place. If only the common lane has
// workers, the lane apart goes first: a common worker may just have left its place to the lane
// apart (gives). Engine.mu is held.
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

// may reports whether a lane has work for one more worker, and a place for it.
func (n *line) may(a *lane) bool {
	switch {
	case n.busyBy() >= n.kind.Flight || n.first(a) < 0 || !n.open():
		return false
	case a == &n.common:
		return a.active == 0 || n.worth(a)
	case n.kind.Flight == 1:
		return len(n.common.queue) == 0
	}
	return a.places < n.kind.Flight-1
}

// busyBy returns how many of the kind's places are taken.
func (n *line) busyBy() int { return n.common.places + n.apart.places + n.strangers }

// first returns the index of the first job of a lane that may be done now, or -1. If the
// kind does not batch, the holds of one owner go one after the other.
func (n *line) first(a *lane) int {
	return slices.IndexFunc(a.queue, func(j job) bool { return n.kind.Batch > 1 || !n.busy[j.l.owner.ID] })
}

// worth reports whether the waiting holds are worth a call beside those under way. If the kind
// batches, only a full batch is worth a call, because a call of few holds keeps others from the
// kernel's locks as long as a call of many. While owners are being taken, not even a full batch is
// worth one, because a Take needs the same locks.
func (n *line) worth(a *lane) bool {
	return len(a.queue) >= a.batch && (a.batch == 1 || !n.e.yields)
}

// lull arranges that releases no longer yield to Takes after calmAfter, unless a Take is under way
// then. Engine.mu is held.
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

// hurryOn starts the calls that were not worth making (worth) while owners were being taken.
// Engine.mu is held.
func (e *Engine) hurryOn() {
	for _, n := range e.lines {
		n.staffAll()
	}
}

// work is a worker: it releases batches of a lane until it gets none (next), or until one of
// its calls was overdue.
func (n *line) work(a *lane) {
	var took time.Duration // how long the last call took
	for {
		n.rest(a, took)
		jobs, p := n.next(a)
		if len(jobs) == 0 {
			return
		}
		holds := make([]hold.Hold, len(jobs))
		for i, j := range jobs {
			holds[i] = j.l.owner.Holds[j.i]
		}
		start := n.e.now()
		back := n.leave(a, jobs)
		errs, hung := n.release(n.e.ctx, holds, p)
		there := back()
		n.settle(jobs, errs, hung)
		if !there {
			n.end(a)
			return
		}
		took = n.e.now().Sub(start)
	}
}

// end gives back the place of a worker that was overdue.
func (n *line) end(a *lane) {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	a.places--
	n.staff()
}

// next takes the next batch from a lane, and begins its call. If next takes no job, the worker
// ends, and gives its place back, which the other lane may use.
func (n *line) next(a *lane) (jobs []job, p *probe) {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	if n.e.ctx.Err() == nil && n.open() && (a.active == 1 || n.worth(a)) && !n.gives(a) {
		jobs = n.take(a)
	}
	if len(jobs) == 0 {
		a.places--
		a.active--
		n.staff()
		return nil, nil
	}
	return jobs, n.begin()
}

// gives reports whether a worker of a lane has to give its place up for the other lane: that
// lane has a job that may be done, and no worker. staff then starts one.
func (n *line) gives(a *lane) bool {
	if a == &n.apart {
		return n.common.places == 0 && n.first(&n.common) >= 0
	}
	return a.places > 1 && n.apart.places == 0 && n.first(&n.apart) >= 0
}

// take takes the next batch from a lane's queue; the batch is empty if no job may be done now.
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

// try is how long one Release may take.
func (n *line) try() time.Duration { return cmp.Or(n.kind.Try, n.e.Try) }

// release gives one batch back, within the limit for one try. p is what begin has returned
// for the call. hung says that the call has used all of that time.
func (n *line) release(ctx context.Context, holds []hold.Hold, p *probe) (errs []error, hung bool) {
	ctx, cancel := context.WithTimeout(ctx, n.try())
	defer cancel()
	began := time.Now()
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
		err := fmt.Errorf("kind %s gave %d answers for %d holds", n.kind.Name(), len(errs), len(holds))
		errs = make([]error, len(holds))
		for i := range errs {
			errs[i] = err
		}
	}
	n.e.released(ctx, holds, began, errs)
	n.e.mu.Lock()
	n.answered(ctx, p, errs...)
	n.e.mu.Unlock()
	return errs, ctx.Err() != nil
}

// settle notes what became of a batch, and lets its owners go on. The owners that have nothing left
// are forgotten in one commit.
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
			s.at, s.past = e.now(), s.trouble.past()
			s.released, s.queued, s.trouble = true, false, nil
			j.l.vacate(n.kind.Name())
		} else {
			if s.trouble.tell() {
				owed = append(owed, Event{Type: Owing, Owner: j.l.owner, Kind: n.kind.Name(), Err: errs[i]})
			}
			if n.pausesAfter(errs[i]) {
				s.trouble = s.trouble.later(e, j.l.owner, errs[i], n.paused, func() { e.retry(j) })
				s.queued = false
				e.send(j.l, j.i) // to wait in the line, which pauses
			} else {
				s.trouble = s.trouble.again(e, j.l.owner, errs[i], func() { e.retry(j) })
			}
			s.trouble.hung = hung
		}
		if e.advance(j.l) {
			done = append(done, j.l)
		}
		done = append(done, e.letPass(j.l)...)
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
