package engine

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/patience"
)

// Owed is a hold whose release has been tried and failed. It is tried again for
// ever, with growing waits.
type Owed struct {
	Hold  hold.Hold // a zero Spec: what is to be written to the ledger, the promise or the forget
	Since time.Time // of the first failure; of the promise, if an earlier run made it
	Tries int       // of this run
	Next  time.Time // of the next try; zero: this program cannot try it
	Err   error     // of the last failure
}

// trouble is what is known of a release that failed. Guarded by Engine.mu.
type trouble struct {
	since, next time.Time
	tries       int
	err         error
	hung        bool        // the last try took all of its time
	asked       bool        // somebody wants to hear how the next try ends
	timer       *time.Timer // of the next try; nil: there is none
	try         func()
}

// again notes one more failure and arranges for the next try. Engine.mu is
// held. The receiver may be nil: then it is the first failure.
func (t *trouble) again(e *Engine, o hold.Owner, err error, try func()) *trouble {
	if t == nil {
		t = &trouble{since: e.since(o), try: try}
	}
	t.tries++
	wait := patience.Backoff(e.Backoff, e.MaxBackoff, t.tries)
	wait = wait/2 + rand.N(wait/2+1)
	t.err, t.asked = err, false
	t.next = e.now().Add(wait)
	t.timer = time.AfterFunc(wait, func() { e.background(try) })
	return t
}

// later notes one more failure, after which the kind's line goes on with the hold by
// itself, at a time. Engine.mu is held, and the receiver may be nil.
func (t *trouble) later(e *Engine, o hold.Owner, err error, at time.Time, try func()) *trouble {
	if t == nil {
		t = &trouble{since: e.since(o), try: try}
	}
	t.stop()
	t.tries++
	t.err, t.asked, t.next, t.timer = err, false, at, nil
	return t
}

// since is when trouble with an owner began that is noticed now. Of a release
// that an earlier run promised no more is known than when.
func (e *Engine) since(o hold.Owner) time.Time {
	if !o.Wanted() && o.Releasing.Before(e.began) {
		return o.Releasing
	}
	return e.now()
}

// hasten brings the next try forward, unless it is under way. Engine.mu is
// held.
func (t *trouble) hasten(e *Engine) {
	t.asked = true
	if t.timer.Stop() {
		t.next = e.now()
		e.spawn(t.try)
	}
}

// failed reports whether the last try has failed, and pending whether the next one
// was asked for and has not ended.
func (t *trouble) failed() bool  { return t != nil && !t.asked }
func (t *trouble) pending() bool { return t != nil && t.asked }

// tell reports whether a failure now is news: the first one, or that of a try
// which was asked for.
func (t *trouble) tell() bool { return t == nil || t.asked }

func (t *trouble) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

func (t *trouble) owed(h hold.Hold) Owed {
	return Owed{Hold: h, Since: t.since, Tries: t.tries, Next: t.next, Err: t.err}
}

// troubles calls f for whatever of an owner has failed, with the hold that it
// is about. Engine.mu is held.
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

// Owed lists what is owed, the longest first; of one owner only, if id is not
// empty.
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

// Retry tries what is owed now instead of later, all of it or that of some
// owners, and returns how many tries that is. A try under way counts, and is
// not made twice. When such a try fails there is another event, and the waits
// go on growing where they were.
func (e *Engine) Retry(ids ...hold.ID) int {
	e.mu.Lock()
	n := 0
	for id, l := range e.leaving {
		if len(ids) > 0 && !slices.Contains(ids, id) {
			continue
		}
		l.troubles(func(_ hold.Hold, t *trouble) {
			if t.timer != nil {
				t.hasten(e)
				e.unstick(l)
				n++
			}
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
