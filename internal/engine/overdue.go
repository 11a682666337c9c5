package engine

import (
	"fmt"
	"time"
)

// This file has what becomes of releases that take long, or do not return.

// leave begins a worker's call. If the worker is not back after a tenth of the limit for a
// try, the worker is no longer active, so that other holds may get a call beside this call if the
// kind's Flight has room for one. If the call has not returned a tenth of the limit after its
// context ended, its holds are owed. back ends the call, and reports whether the worker came in
// time.
func (n *line) leave(a *lane, jobs []job) (back func() bool) {
	there, returned, began := true, false, n.e.now()
	away := func(f func()) func() {
		return func() {
			n.e.mu.Lock()
			defer n.e.mu.Unlock()
			if !returned {
				f()
			}
		}
	}
	overdue := time.AfterFunc(n.try()/10, away(func() {
		there = false
		a.active--
		n.e.slow(jobs)
		n.staff()
	}))
	lost := time.AfterFunc(n.try()+n.try()/10, away(func() { n.lost(jobs, began) }))
	return func() bool {
		overdue.Stop()
		lost.Stop()
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		returned = true
		return there
	}
}

// lost notes that a batch's holds are owed, because their call has not returned though its
// context has ended. The call keeps its place, and settle notes what becomes of it. Engine.mu is
// held.
func (n *line) lost(jobs []job, began time.Time) {
	e := n.e
	if e.ctx.Err() != nil {
		return
	}
	err := fmt.Errorf("the release does not return: it had %s, and did not heed the end of its context", n.try())
	for _, j := range jobs {
		s := &j.l.state[j.i]
		if s.trouble.tell() {
			o := j.l.owner // advance may change it
			e.spawn(func() { e.event(Owing, o, n.kind.Name(), err) })
		}
		s.trouble = s.trouble.underWay(e, j.l.owner, err, began)
		e.advance(j.l) // advance returns false: this hold is left
		if last := e.letPass(j.l); len(last) > 0 {
			e.spawn(func() { e.forget(last) })
		}
		e.note(j.l)
	}
}
