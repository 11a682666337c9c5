package engine

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/patience"
)

// Owed is a hold whose release has been tried and has failed, or a commit that could not be
// written. The engine tries the release or the commit again for ever, with growing waits.
type Owed struct {
	Hold  hold.Hold // with a nil Spec: the promise or the forget could not be written to the ledger
	Since time.Time // the first failure, or the promise if an earlier run of the program made it
	Tries int       // in this run of the program
	Next  time.Time // the next try; zero: this program cannot try it
	Err   error     // the last failure
}

// trouble is what is known of a release, a promise or a forget that has failed. Engine.mu
// guards it.
type trouble struct {
	since, next time.Time
	tries       int
	err         error
	hung        bool        // the last try took all of its time
	asked       bool        // Retry has asked for the next try, and that try has not ended
	lost        bool        // the last try has not returned yet, and is counted as failed
	timer       *time.Timer // starts the next try; nil: the line starts it, or there is none
	try         func()
}

// again notes one more failure, and arranges for the next try after a wait. The receiver is
// nil at the first failure. Engine.mu is held.
func (t *trouble) again(e *Engine, o hold.Owner, err error, try func()) *trouble {
	if t == nil {
		t = &trouble{since: e.since(o)}
	}
	t.try = try
	t.count()
	wait := patience.Backoff(e.Backoff, e.MaxBackoff, t.tries)
	wait = wait/2 + rand.N(wait/2+1)
	t.err, t.asked = err, false
	t.next = e.now().Add(wait)
	t.timer = time.AfterFunc(wait, func() { e.background(try) })
	return t
}

// later notes one more failure for a hold that is already back in its line: the line pauses until
// the time `at`, and then tries the hold without a timer. The receiver is nil at the first failure.
// Engine.mu is held.
func (t *trouble) later(e *Engine, o hold.Owner, err error, at time.Time, try func()) *trouble {
	if t == nil {
		t = &trouble{since: e.since(o)}
	}
	t.try = try
	t.stop()
	t.count()
	t.err, t.asked, t.next, t.timer = err, false, at, nil
	return t
}

// underWay notes that a try, which began at the time `began`, does not return. The receiver is nil
// if it is the first try. Engine.mu is held.
func (t *trouble) underWay(e *Engine, o hold.Owner, err error, began time.Time) *trouble {
	if t == nil {
		t = &trouble{since: e.since(o)}
	}
	t.count()
	t.err, t.asked, t.lost, t.next, t.timer = err, false, true, began, nil
	return t
}

// count counts a try that has failed, unless underWay has counted that try already.
func (t *trouble) count() {
	if !t.lost {
		t.tries++
	}
	t.lost = false
}

// since returns when a trouble with an owner began that the engine has just noticed: now. But if an
// earlier run of the program promised the owner's release, since returns the time of the promise:
// this run knows nothing of earlier failures.
func (e *Engine) since(o hold.Owner) time.Time {
	if !o.Wanted() && o.Releasing.Before(e.began) {
		return o.Releasing
	}
	return e.now()
}

// hasten starts the next try now, unless it is under way. Engine.mu is held.
func (t *trouble) hasten(e *Engine) {
	t.asked = true
	if t.timer.Stop() {
		t.next = e.now()
		e.spawn(t.try)
	}
}

// failed reports whether the last try has failed, and no further one was asked for. pending
// reports whether a try was asked for and has not ended.
func (t *trouble) failed() bool  { return t != nil && !t.asked }
func (t *trouble) pending() bool { return t != nil && t.asked }

// tell reports whether a failure now deserves an event: it is the first failure, or the failure of
// a try that Retry has asked for.
func (t *trouble) tell() bool { return t == nil || t.asked }

func (t *trouble) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

func (t *trouble) owed(h hold.Hold) Owed {
	return Owed{Hold: h, Since: t.since, Tries: t.tries, Next: t.next, Err: t.err}
}

// troubles calls f for each trouble of an owner's release, with the hold that the trouble is
// about, or with a hold without a spec for the forget. Engine.mu is held.
func (l *leaving) troubles(f func(hold.Hold, *trouble)) {
	for i, s := range l.state {
		if s.trouble != nil {
			f(l.owner.Holds[i], s.trouble)
		}
	}
	if l.trouble != nil {
		f(hold.Hold{Owner: l.owner.ID}, l.trouble)
	}
}

// Owed lists what is owed, the oldest first. If id is not empty, it lists only what that
// owner owes.
func (e *Engine) Owed(id hold.ID) []Owed {
	e.mu.Lock()
	defer e.mu.Unlock()
	var owed []Owed
	note := func(h hold.Hold, t *trouble) { owed = append(owed, t.owed(h)) }
	if id != "" {
		if l := e.leaving[id]; l != nil {
			l.troubles(note)
		}
		if t := e.doomed[id]; t != nil {
			note(hold.Hold{Owner: id}, t)
		}
	} else {
		for _, l := range e.leaving {
			l.troubles(note)
		}
		for id, t := range e.doomed {
			if t != nil {
				note(hold.Hold{Owner: id}, t)
			}
		}
	}
	slices.SortFunc(owed, func(a, b Owed) int { return a.Since.Compare(b.Since) })
	return owed
}

// Retry tries now, instead of later, what the owners of ids owe; without ids, what all
// owners owe. It returns the number of tries. A try that is under way counts, and Retry does not
// make it twice. If a try that Retry has asked for fails, the engine sends another event, and the
// waits go on growing from where they were. A release that waits for its kind's pause to end is not
// tried.
func (e *Engine) Retry(ids ...hold.ID) int {
	e.mu.Lock()
	n := 0
	for id, l := range e.leaving {
		if len(ids) > 0 && !slices.Contains(ids, id) {
			continue
		}
		l.troubles(func(_ hold.Hold, t *trouble) {
			switch {
			case t.lost:
				t.asked = true
			case t.timer != nil:
				t.hasten(e)
			default:
				return
			}
			e.unstick(l)
			n++
		})
	}
	for id, t := range e.doomed {
		if t != nil && (len(ids) == 0 || slices.Contains(ids, id)) {
			t.hasten(e)
			n++
		}
	}
	e.mu.Unlock()
	e.hasten()
	return n
}
