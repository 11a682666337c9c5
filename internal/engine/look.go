package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
)

// lateLooks is how many looks of a kind may go on after their time. If lateLooks of them do, the
// engine begins no more looks of the kind: each would cost a goroutine.
const lateLooks = 16

// errLate says that the engine does not ask a kind, because too many earlier looks of the
// kind have not ended.
var errLate = errors.New("too many earlier looks have not ended")

// aside runs one look of a kind in a goroutine of its own, and within the kind's Look or
// Options.Look: a kind that hangs delays no look at another kind. aside does not believe an answer
// that comes after that time, because the kind may have seen only a part by then.
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

// hesitates reports whether a look of a kind has taken too long within the last six times
// Options.Look. A caller that is in a hurry does not ask such a kind.
func (e *Engine) hesitates(k hold.Kind) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.overdue[k.Name()]
	return ok && e.now().Sub(at) < 6*e.Look
}
