package engine

import (
	"context"
	"fmt"
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
	queue  []job
	hurry  chan struct{}    // has a token once somebody waits; of lazy kinds
	active int              // workers
	busy   map[hold.ID]bool // owners with a single hold in a worker's hands
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
	k.Flight = max(k.Flight, 1)
	return &line{e: e, kind: k, busy: map[hold.ID]bool{}, hurry: make(chan struct{}, 1)}
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
		s.trouble = &trouble{since: e.now(), err: err}
		return
	}
	n.queue = append(n.queue, job{l, i})
	if n.active < n.kind.Flight && (n.active == 0 || n.worth()) {
		n.active++
		e.spawn(n.work)
	}
}

// worth reports whether what waits is worth a call beside those under way: of a
// kind that batches only a full batch is, since a call of few holds keeps
// others from the kernel's locks as long as one of many.
func (n *line) worth() bool { return len(n.queue) >= n.kind.Batch }

// work releases batches until nothing waits.
func (n *line) work() {
	for {
		jobs := n.next()
		if len(jobs) == 0 {
			return
		}
		holds := make([]hold.Hold, len(jobs))
		for i, j := range jobs {
			holds[i] = j.l.owner.Holds[j.i]
		}
		start := n.e.now()
		n.settle(jobs, n.release(holds))
		if n.kind.Lazy {
			n.gather(9 * n.e.now().Sub(start))
		}
	}
}

// gather lets holds come together for a lazy kind's next batch, until somebody
// waits for them.
func (n *line) gather(pause time.Duration) {
	timer := time.NewTimer(min(pause, time.Second))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.hurry:
	case <-n.e.ctx.Done():
	}
}

// hasten ends the pause of all lazy kinds.
func (e *Engine) hasten() {
	for _, n := range e.lines {
		select {
		case n.hurry <- struct{}{}:
		default:
		}
	}
}

// next takes the next batch from the line; none ends the worker.
func (n *line) next() []job {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	var jobs []job
	if n.e.ctx.Err() == nil && (n.active == 1 || n.worth()) {
		jobs = n.take()
	}
	if len(jobs) == 0 {
		n.active--
	}
	return jobs
}

func (n *line) take() []job {
	if n.kind.Batch > 1 {
		k := min(n.kind.Batch, len(n.queue))
		jobs := n.queue[:k:k]
		n.queue = n.queue[k:]
		return jobs
	}
	for i, j := range n.queue {
		if id := j.l.owner.ID; !n.busy[id] {
			n.busy[id] = true
			n.queue = append(n.queue[:i:i], n.queue[i+1:]...)
			return []job{j}
		}
	}
	return nil
}

// release gives one batch back, within the engine's limit for one try.
func (n *line) release(holds []hold.Hold) (errs []error) {
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
	return errs
}

// settle notes what became of a batch, lets its owners go on, and forgets in
// one commit those that have nothing left.
func (n *line) settle(jobs []job, errs []error) {
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
			if s.trouble == nil {
				owed = append(owed, Event{"owed", j.l.owner, n.kind.Name(), errs[i]})
			}
			s.trouble = s.trouble.again(e, errs[i], func() { e.retry(j) })
		}
		if e.advance(j.l) {
			done = append(done, j.l)
		}
	}
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
