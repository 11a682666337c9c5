package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// A kind may say that nothing of it is to be tried before a time (hold.LaterError). Until
// then its whole line pauses, and each Take that has to acquire a hold of the kind waits.

// pause lets the line pause until a time. It shortens no pause. Engine.mu is held.
func (n *line) pause(until time.Time) {
	now := n.e.now()
	wait := until.Sub(now)
	until = now.Add(wait) // by the monotonic clock, which nobody sets
	if wait <= 0 || !until.After(n.paused) {
		return
	}
	n.paused = until
	time.AfterFunc(wait, func() {
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		if n.paused == until {
			n.paused = time.Time{}
		}
		for range n.kind.Flight {
			n.staff()
		}
	})
}

// pausesAfter lets the line pause if err is a LaterError, and reports whether it pauses
// because of that. A LaterError whose time has passed is like any other error. Engine.mu is
// held.
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

// overdueAnswers is how often an Acquire may answer with a LaterError whose time has
// passed, and is called again. After that, such an answer is an error.
const overdueAnswers = 3

// inTurn calls f as soon as the kind does not pause, and again after each LaterError that f
// returns. If it would have to wait beyond the deadline of ctx, it returns an error at once.
func (e *Engine) inTurn(ctx context.Context, k hold.Kind, f func() error) error {
	n := e.lines[k.Name()]
	for overdue := 0; ; {
		e.mu.Lock()
		until, pauses := n.paused, n.pauses()
		e.mu.Unlock()
		if pauses {
			if err := e.sleepUntil(ctx, until); err != nil {
				return err
			}
			continue
		}
		err := f()
		var later *hold.LaterError
		if !errors.As(err, &later) || overdue == overdueAnswers {
			return err
		}
		if !later.At.After(e.now()) {
			overdue++
		}
		e.mu.Lock()
		n.pause(later.At)
		e.mu.Unlock()
	}
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
// because it may hang: the other places are for things that have an owner.
func (n *line) stranger(ctx context.Context, h hold.Hold) (err error, tried bool) {
	n.e.mu.Lock()
	if n.strangers > 0 || n.busyBy() >= n.kind.Flight || n.pauses() {
		n.e.mu.Unlock()
		return nil, false
	}
	released := make(chan error, 1)
	begun := n.e.spawn(func() {
		errs, _ := n.release(ctx, []hold.Hold{h})
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		n.strangers--
		n.staff()
		released <- errs[0]
	})
	if begun {
		n.strangers++
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
