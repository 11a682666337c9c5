package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
)

// lateLooks is how many looks of a kind may go on after their time. More are not
// begun: each would cost a goroutine.
const lateLooks = 16

// errLate says that a kind is not asked, since it has not answered so often.
var errLate = errors.New("its former looks have not ended")

// aside runs one look of a kind in a goroutine of its own and within Options.Look,
// so that one which hangs keeps nobody from another kind. What it answers after its
// time is not believed: it may be no more than what it had seen by then.
func aside[T any](ctx context.Context, e *Engine, k hold.Kind, op string, holds int, look func(context.Context) (T, error)) (T, error) {
	var none, seen T
	name := k.Name()
	e.mu.Lock()
	late := e.late[name]
	e.mu.Unlock()
	if late >= lateLooks {
		return none, fmt.Errorf("kind %s: %w", name, errLate)
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.Look, e.Look))
	defer cancel()
	var err error
	ended, overtime := make(chan struct{}), false
	begun := e.background(func() {
		err = e.observed(name, op, holds, func() (err error) {
			seen, err = look(ctx)
			return err
		})
		e.mu.Lock()
		defer e.mu.Unlock()
		if overtime {
			e.late[name]--
		}
		close(ended)
	})
	if !begun {
		return none, fmt.Errorf("kind %s: %w", name, errClosing)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		e.mu.Lock()
		select {
		case <-ended:
		default:
			overtime = true
			e.late[name]++
		}
		e.mu.Unlock()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.mu.Lock()
		e.overdue[name] = e.now()
		e.mu.Unlock()
	}
	if ctx.Err() != nil {
		return none, fmt.Errorf("kind %s: %w", name, context.Cause(ctx))
	}
	return seen, err
}

// hesitates reports whether a look of a kind has lately taken too long: who is in a
// hurry does not ask it then.
func (e *Engine) hesitates(k hold.Kind) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.overdue[k.Name()]
	return ok && e.now().Sub(at) < 6*e.Look
}
