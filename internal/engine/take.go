package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// undo is how long the release of an owner that could not be taken may take to
// be written down and cut off.
const undo = 10 * time.Second

// Take writes an owner down, with ops in the same commit, and then acquires its
// holds in their order. When it returns nil the owner has all of them, and they
// can be used. On an error the owner is not there, or is being released: its names
// are not free before that has ended. If even the promise of that release cannot
// be written, the owner is owed until it can: nobody repairs it meanwhile. A
// *RefusedError, such as of a *ledger.NameTakenError, says that nothing has
// changed.
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
	err = e.Ledger.Commit(taking, append([]ledger.Op{ledger.Begin(o)}, ops...)...)
	if err != nil && !e.begun(o.ID, err) {
		return &RefusedError{err}
	}
	e.event(Attaching, o, "", nil)
	if err == nil {
		err = e.acquireAll(taking, o, 0)
	}
	if err == nil {
		e.event(Attached, o, "", nil) // before a release can have the lock
		return nil
	}
	e.doom(o.ID) // before a repair can have the lock
	leave()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	if undone := e.undo(ctx, o); undone != nil {
		return errors.Join(err, fmt.Errorf("undoing: %w", undone))
	}
	return err
}

// begun reports whether an owner is in the ledger although the commit that begins it
// has failed: its effect came, and its answer did not.
func (e *Engine) begun(id hold.ID, err error) bool {
	_, there := e.Ledger.Owner(id)
	return there && !errors.Is(err, ledger.ErrExists)
}

// doom marks an owner that could not be taken. It stays so until its release is
// promised.
func (e *Engine) doom(id hold.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doomed[id] = nil
}

// Doomed reports whether an owner could not be taken, and the promise of its
// release is not written yet: it is wanted in the ledger alone.
func (e *Engine) Doomed(id hold.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, doomed := e.doomed[id]
	return doomed
}

// undo releases an owner that could not be taken. A promise that cannot be written
// is tried again, for ever.
func (e *Engine) undo(ctx context.Context, o hold.Owner) error {
	all, err := e.Promise(ctx, []hold.ID{o.ID})
	if err != nil && e.doomAgain(o, err) {
		e.event(Owing, o, "ledger", err)
	}
	return errors.Join(err, e.Depart(ctx, all))
}

// doomAgain arranges for another try to promise the release of an owner, unless
// somebody else has promised it meanwhile.
func (e *Engine) doomAgain(o hold.Owner, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, doomed := e.doomed[o.ID]
	if doomed {
		e.doomed[o.ID] = t.again(e, o, err, func() { _ = e.undo(e.ctx, o) })
	}
	return doomed
}

// absolve ends the doom of owners whose release is promised.
func (e *Engine) absolve(ids []hold.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		if t := e.doomed[id]; t != nil {
			t.stop()
		}
		delete(e.doomed, id)
	}
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

// acquireAll acquires an owner's holds from one on, stopping at the first that fails,
// and waits until they can be used. What a hold discovers is written down before the
// next one is acquired.
func (e *Engine) acquireAll(ctx context.Context, o hold.Owner, from int) error {
	for i := from; i < len(o.Holds); i++ {
		h := o.Holds[i]
		k, _ := e.kind(h)
		err := e.acquire(ctx, h)
		if k.Discovers {
			err = errors.Join(err, e.learn(ctx, o, i+1))
		}
		if err == nil {
			continue
		}
		if k.Stage != hold.Tell || ctx.Err() != nil {
			return err
		}
		e.event(Drifted, o, k.Name(), err) // the next sweep tries again
	}
	if err := e.settle(ctx, o.Holds[from:]); err != nil {
		return err
	}
	return e.stillWanted(ctx, o.ID)
}

// Settle waits until what an owner holds can be used.
func (e *Engine) Settle(ctx context.Context, o hold.Owner) error { return e.settle(ctx, o.Settled()) }

func (e *Engine) settle(ctx context.Context, holds []hold.Hold) error {
	for _, h := range holds {
		k, err := e.kind(h)
		if err != nil || k.Settle == nil {
			continue
		}
		if err := k.Settle(ctx, h); err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, ErrOvertaken) {
				return cause
			}
			return fmt.Errorf("waiting until %s can be used: %w", h.Spec, err)
		}
	}
	return nil
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
	err = e.inTurn(ctx, k, func() error {
		return e.observed(k.Name(), "acquire", 1, func() error { return k.Acquire(ctx, h) })
	})
	if err == nil {
		if k.Ends {
			e.revives(h)
		}
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
