package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// A kind may say that nothing of it is to be tried before a time (hold.LaterError). Until
// then its whole line pauses, and each Take that has to acquire a hold of the kind waits.
// When the time has come, one call is the probe, and all other calls wait for the kind's answer to
// the probe. If the answer is another LaterError they wait on; after any other answer they go on.

// probe is the one call of a kind that asks again after a pause.
type probe struct {
	over  chan struct{} // closed once nobody has to wait for the call any more
	limit *time.Timer
}

// pause lets the line pause until a time. It shortens no pause. Engine.mu is held.
func (n *line) pause(until time.Time) {
	now := n.e.now()
	wait := until.Sub(now)
	until = now.Add(wait) // by the monotonic clock, which nobody sets
	if wait <= 0 || !until.After(n.paused) {
		return
	}
	n.paused, n.doubt = until, true
	time.AfterFunc(wait, func() {
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		if n.paused == until {
			n.paused = time.Time{}
		}
		n.staffAll()
	})
}

// staffAll starts as many workers as there are work and places for. Engine.mu is held.
func (n *line) staffAll() {
	for range n.kind.Flight {
		n.staff()
	}
}

// pausesAfter lets the line pause if err is a LaterError, and reports whether the line pauses then.
// A LaterError whose time has passed is like any other error. Engine.mu is held.
func (n *line) pausesAfter(err error) bool {
	var later *hold.LaterError
	if !errors.As(err, &later) {
		return false
	}
	n.pause(later.At)
	return n.pauses()
}

// pauses reports whether nothing of the kind is to be tried now. Engine.mu is held.
func (n *line) pauses() bool { return n.e.now().Before(n.paused) }

// open reports whether a call may begin now. Engine.mu is held.
func (n *line) open() bool { return !n.pauses() && n.probe == nil }

// begin notes that a call of an open line begins. The call is a probe if the line is in doubt
// (line.doubt); if not, begin returns nil. A probe that takes longer than a tenth of the limit for
// a try keeps the other calls waiting no longer: the next call is a probe, too. Engine.mu is held.
func (n *line) begin() *probe {
	if !n.doubt {
		return nil
	}
	p := &probe{over: make(chan struct{})}
	n.probe = p
	p.limit = time.AfterFunc(n.try()/10, func() {
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		n.endProbe(p)
	})
	return p
}

// answered notes how the kind answered a call. p is what begin has returned for the call, whose
// context is ctx. A call that ended because of its context says nothing about the kind. Engine.mu
// is held.
func (n *line) answered(ctx context.Context, p *probe, errs ...error) {
	says := true
	for _, err := range errs {
		var later *hold.LaterError
		if errors.As(err, &later) {
			n.pause(later.At)
			says = false
		}
		says = says && (err == nil || ctx.Err() == nil)
	}
	if p == nil {
		return
	}
	p.limit.Stop()
	if says && !n.pauses() { // another call may have heard of a pause meanwhile
		n.doubt = false
		p = cmp.Or(n.probe, p) // nobody has to wait for a later probe
	}
	n.endProbe(p)
}

// endProbe lets the calls go on that wait for a probe. Engine.mu is held.
func (n *line) endProbe(p *probe) {
	if n.probe == p {
		n.probe = nil
		close(p.over)
		n.staffAll()
	}
}

// overdueAnswers is how often an Acquire may answer with a LaterError whose time has
// passed, and is called again. After that, such an answer is an error.
const overdueAnswers = 3

// inTurn calls f as soon as the kind's line is open, and again after each LaterError that f
// returns. If inTurn would have to wait beyond the deadline of ctx, it returns an error at once.
func (e *Engine) inTurn(ctx context.Context, k hold.Kind, f func() error) error {
	n := e.lines[k.Name()]
	for overdue := 0; ; {
		p, err := n.enter(ctx)
		if err != nil {
			return err
		}
		err = n.ask(ctx, p, f)
		var later *hold.LaterError
		if !errors.As(err, &later) || overdue == overdueAnswers {
			return err
		}
		if !later.At.After(e.now()) {
			overdue++
		}
	}
}

// enter waits until the line is open, and begins a call.
func (n *line) enter(ctx context.Context) (*probe, error) {
	e := n.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for !n.open() {
		until, pauses, ahead := n.paused, n.pauses(), n.probe
		e.mu.Unlock()
		var err error
		if pauses {
			err = e.sleepUntil(ctx, until)
		} else if ahead != nil { // else the pause has ended since open looked
			select {
			case <-ahead.over:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		e.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	return n.begin(), nil
}

// ask makes a call that enter has begun.
func (n *line) ask(ctx context.Context, p *probe, f func() error) (err error) {
	err = errors.New("the kind has panicked")
	defer func() {
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		n.answered(ctx, p, err)
	}()
	err = f()
	return err
}

// sleepUntil waits until a time. If the deadline of ctx is earlier, it returns an error at
// once.
func (e *Engine) sleepUntil(ctx context.Context, at time.Time) error {
	if end, ok := ctx.Deadline(); ok && end.Before(at) {
		return fmt.Errorf("this kind of hold pauses until %s", at.UTC().Format(time.RFC3339))
	}
	timer := time.NewTimer(at.Sub(e.now()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stranger releases a thing that has no owner. tried is false if the line has no place for
// it now, or if the kind pauses. At most one release of a thing without an owner runs at once,
// because such a release may hang: the other places are for things that have an owner.
func (n *line) stranger(ctx context.Context, h hold.Hold) (err error, tried bool) {
	n.e.mu.Lock()
	if n.strangers > 0 || n.busyBy() >= n.kind.Flight || !n.open() {
		n.e.mu.Unlock()
		return nil, false
	}
	p := n.begin()
	released := make(chan error, 1)
	begun := n.e.spawn(func() {
		errs, _ := n.release(ctx, []hold.Hold{h}, p)
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		n.strangers--
		n.staff()
		released <- errs[0]
	})
	if begun {
		n.strangers++
	} else if p != nil {
		n.endProbe(p)
	}
	n.e.mu.Unlock()
	if !begun {
		return errClosing, false
	}
	limit := time.NewTimer(n.try()) // a kind may not heed its context
	defer limit.Stop()
	select {
	case err = <-released:
	case <-limit.C:
		return fmt.Errorf("the release has not ended within %s", n.try()), true
	}
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	if n.pausesAfter(err) {
		return nil, false
	}
	return err, true
}
