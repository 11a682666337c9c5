package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// undo is how long the release of an owner that could not be taken may take to
// be written down and cut off.
const undo = 10 * time.Second

// Take writes an owner down, with ops in the same commit, and then acquires its
// holds in their order. When it returns nil the owner has all of them. On an
// error the owner is not there, or is being released: its names are not free
// before that has ended. A *RefusedError, such as of a *ledger.NameTakenError,
// says that nothing has changed.
func (e *Engine) Take(ctx context.Context, o hold.Owner, ops ...ledger.Op) error {
	if err := e.takeable(o); err != nil {
		return &RefusedError{err}
	}
	taking, leave, err := e.enter(ctx, o.ID, true)
	if err != nil {
		return &RefusedError{err}
	}
	leave = sync.OnceFunc(leave)
	defer leave() // also after a panic of a kind, or the owner could never be released
	if err := e.Ledger.Commit(taking, append([]ledger.Op{ledger.Begin(o)}, ops...)...); err != nil {
		return &RefusedError{err}
	}
	e.event(api.EventAttaching, o, "", nil)
	err = e.acquireAll(taking, o)
	if err == nil {
		e.event(api.EventAttached, o, "", nil) // before a release can have the lock
	}
	leave()
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	if undone := e.Release(ctx, []hold.ID{o.ID}); undone != nil {
		return errors.Join(err, fmt.Errorf("undoing: %w", undone))
	}
	return err
}

// takeable refuses what this program could not release again.
func (e *Engine) takeable(o hold.Owner) error {
	if !o.Wanted() {
		return fmt.Errorf("taking %s: it is being released already", o.ID)
	}
	for _, h := range o.Holds {
		if _, err := e.kind(h); err != nil {
			return fmt.Errorf("taking %s: %w", o.ID, err)
		}
		if h.Owner != o.ID {
			return fmt.Errorf("taking %s: its hold %s is another owner's", o.ID, h)
		}
	}
	return nil
}

// acquireAll acquires an owner's holds, stopping at the first that fails.
func (e *Engine) acquireAll(ctx context.Context, o hold.Owner) error {
	discovered := false
	for _, h := range o.Holds {
		if err := e.acquire(ctx, h); err != nil {
			k, _ := e.kind(h)
			if k.Stage != hold.Tell || ctx.Err() != nil {
				return err
			}
			e.event(api.EventDrift, o, k.Name(), err) // the next sweep tries again
		}
		k, _ := e.kind(h)
		discovered = discovered || k.Discovers
	}
	if discovered {
		err := e.Ledger.Commit(ctx, ledger.Update(o.ID, func(rec *hold.Owner) error {
			rec.Holds = o.Holds
			return nil
		}))
		if err != nil {
			return fmt.Errorf("writing down what was discovered: %w", err)
		}
	}
	return e.stillWanted(ctx, o.ID)
}

// acquire takes one hold, unless its owner has been released meanwhile.
func (e *Engine) acquire(ctx context.Context, h hold.Hold) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k, err := e.kind(h)
	if err != nil {
		return err
	}
	err = e.observed(k.Name(), "acquire", 1, func() error { return k.Acquire(ctx, h) })
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrOvertaken) {
		return cause
	}
	return fmt.Errorf("taking %s: %w", h.Spec, err)
}

// stillWanted looks again before an answer is given: an owner that was
// released in the meantime was not taken.
func (e *Engine) stillWanted(ctx context.Context, id hold.ID) error {
	if o, ok := e.Ledger.Owner(id); !ok || !o.Wanted() {
		return ErrOvertaken
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
