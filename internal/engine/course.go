package engine

import (
	"context"

	"github.com/berth-net/berth/internal/hold"
)

// course is what somebody does with one owner in the owner's turn. A caller that takes, repairs,
// changes or cuts an owner needs that turn first. A course exists only while
// somebody has the turn. Engine.mu guards it.
type course struct {
	taking bool                    // a Take has the turn
	cancel context.CancelCauseFunc // stops the turn's holder
}

// enter waits for an owner's turn. The context that it returns also ends when somebody
// interrupts the turn to release the owner. leave ends the turn.
func (e *Engine) enter(ctx context.Context, id hold.ID, taking bool) (_ context.Context, leave func(), _ error) {
	done, err := e.turns.Take(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	e.mu.Lock()
	e.courses[id] = &course{taking, cancel}
	if taking {
		e.takes++
		e.yields = true
	}
	e.mu.Unlock()
	return ctx, func() {
		e.mu.Lock()
		delete(e.courses, id)
		if taking {
			if e.takes--; e.takes == 0 {
				e.lull()
			}
		}
		e.mu.Unlock()
		cancel(nil)
		done()
	}, nil
}

// interrupt stops the holder of an owner's turn, because the owner is being released.
func (e *Engine) interrupt(id hold.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.courses[id]; c != nil {
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
