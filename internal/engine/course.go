package engine

import (
	"context"

	"github.com/berth-net/berth/internal/hold"
)

// course is what is under way with one owner: the lock that taking, repairing
// and cutting it need, and the means to stop whoever has the lock. It exists
// only while somebody has the lock or waits for it.
type course struct {
	lock   chan struct{} // holds one token while somebody has the lock
	users  int           // of the course: has or wants the lock. Guarded by Engine.mu
	taking bool          // a Take has the lock. Guarded by Engine.mu
	cancel context.CancelCauseFunc
}

// enter waits for an owner's lock. The context it returns ends also when the
// owner is released; leave gives the lock back.
func (e *Engine) enter(ctx context.Context, id hold.ID, taking bool) (_ context.Context, leave func(), _ error) {
	e.mu.Lock()
	c := e.courses[id]
	if c == nil {
		c = &course{lock: make(chan struct{}, 1)}
		e.courses[id] = c
	}
	c.users++
	e.mu.Unlock()

	select {
	case c.lock <- struct{}{}:
	case <-ctx.Done():
		e.unuse(id, c)
		return nil, nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	e.mu.Lock()
	c.taking, c.cancel = taking, cancel
	if taking {
		e.takes++
		e.yields = true
	}
	e.mu.Unlock()
	return ctx, func() {
		e.mu.Lock()
		c.taking, c.cancel = false, nil
		if taking {
			if e.takes--; e.takes == 0 {
				e.lull()
			}
		}
		e.mu.Unlock()
		cancel(nil)
		<-c.lock
		e.unuse(id, c)
	}, nil
}

func (e *Engine) unuse(id hold.ID, c *course) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(e.courses, id)
	}
}

// interrupt stops whoever has an owner's lock, because it is being released.
func (e *Engine) interrupt(id hold.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.courses[id]; c != nil && c.cancel != nil {
		c.cancel(ErrOvertaken)
	}
}

// Taking reports whether an owner is being taken right now.
func (e *Engine) Taking(id hold.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.courses[id]
	return c != nil && c.taking
}
