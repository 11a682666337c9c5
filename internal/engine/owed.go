package engine

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// Owed is a hold whose release has been tried and failed. It is tried again for
// ever, with growing waits.
type Owed struct {
	Hold  hold.Hold // a zero Spec: the forget in the ledger
	Since time.Time // of the first failure
	Tries int
	Next  time.Time // of the next try; zero: this program cannot try it
	Err   error     // of the last failure
}

// trouble is what is known of a release that failed.
type trouble struct {
	since, next time.Time
	tries       int
	err         error
	timer       *time.Timer
}

// again notes one more failure and arranges for the next try. Engine.mu is
// held. The receiver may be nil: then it is the first failure.
func (t *trouble) again(e *Engine, err error, try func()) *trouble {
	if t == nil {
		t = &trouble{since: e.now()}
	}
	wait := e.MaxBackoff
	if t.tries < 20 {
		wait = min(wait, e.Backoff<<t.tries)
	}
	wait = wait/2 + rand.N(wait/2+1)
	t.tries++
	t.err = err
	t.next = e.now().Add(wait)
	t.timer = time.AfterFunc(wait, func() { e.background(try) })
	return t
}

func (l *leaving) stopTimers() {
	for _, s := range l.state {
		s.trouble.stop()
	}
	l.trouble.stop()
}

func (t *trouble) stop() {
	if t != nil && t.timer != nil {
		t.timer.Stop()
	}
}

func (t *trouble) owed(h hold.Hold) Owed {
	return Owed{Hold: h, Since: t.since, Tries: t.tries, Next: t.next, Err: t.err}
}

// Owed lists what is owed, the longest first; of one owner only, if id is not
// empty.
func (e *Engine) Owed(id hold.ID) []Owed {
	e.mu.Lock()
	defer e.mu.Unlock()
	var owed []Owed
	if id != "" {
		if l := e.leaving[id]; l != nil {
			owed = l.owed()
		}
	} else {
		for _, l := range e.leaving {
			owed = append(owed, l.owed()...)
		}
	}
	slices.SortFunc(owed, func(a, b Owed) int { return a.Since.Compare(b.Since) })
	return owed
}

func (l *leaving) owed() []Owed {
	var owed []Owed
	for i, s := range l.state {
		if s.trouble != nil {
			owed = append(owed, s.trouble.owed(l.owner.Holds[i]))
		}
	}
	if l.trouble != nil {
		owed = append(owed, l.trouble.owed(hold.Hold{Owner: l.owner.ID}))
	}
	return owed
}
