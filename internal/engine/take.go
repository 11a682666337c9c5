package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/turn"
)

// undo limits how long a Take that failed waits until the owner's release is promised
// and the owner cut off. It also limits other commits that must be written although the
// caller has gone.
const undo = 10 * time.Second

// Take writes an owner into the ledger, with ops in the same commit, and then acquires
// the owner's holds in their order. When Take returns nil, the owner has all of its
// holds, and they can be used. If ctx has a spot in a line (turn.InLine), Take acquires the holds when the Take ahead
// has acquired its own: the ledger has the owner before that, and what the holds have discovered after that.
//
// A *RefusedError, such as one around a *ledger.NameTakenError, says that nothing has
// changed. After any other error the owner is being released, or is gone already: its
// names are not free before its release has ended. If the promise of that release
// cannot be written, the owner is doomed: the promise is owed and tried again for ever,
// and nobody repairs the owner meanwhile.
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
	err = e.commit(taking, append([]ledger.Op{ledger.Begin(o)}, ops...)...)
	if err != nil && !e.begun(o.ID, err) {
		return &RefusedError{err}
	}
	e.event(Attaching, o, "", nil)
	if err == nil {
		err = turn.SpotOf(taking).Come(taking)
	}
	if err == nil {
		var failed int
		failed, err = e.acquireAll(taking, o, 0)
		if err != nil && e.neverReached(o, failed, err) {
			e.noteUnused(o.ID)
		}
	}
	if err == nil {
		e.event(Attached, o, "", nil) // before a release can have the turn
		return nil
	}
	e.doom(o.ID) // before a repair can have the turn
	e.noteFailed(o.ID, err)
	leave()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	if undone := e.undo(ctx, o); undone != nil {
		return errors.Join(err, fmt.Errorf("undoing: %w", undone))
	}
	return err
}

// neverReached reports whether nobody can have reached an owner whose Take has failed with err at
// one of its holds: the failed hold is the first by which the owner could have been reached, and
// its kind says that nobody could have used it.
func (e *Engine) neverReached(o hold.Owner, failed int, err error) bool {
	cuts := func(h hold.Hold) bool {
		k, err := e.kind(h)
		return err != nil || k.Cut != nil
	}
	return errors.Is(err, hold.ErrUnused) && failed < len(o.Holds) &&
		slices.IndexFunc(o.Holds, cuts) == failed
}

// noteUnused notes that the names of an owner that could not be taken were never used, and
// need not rest. Only this engine knows that: after a crash the names rest.
func (e *Engine) noteUnused(id hold.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unused[id] = true
}

// begun reports whether the ledger has an owner although the commit that begins the
// owner has returned err: a commit that was withdrawn may have been written all the same.
// After ledger.ErrExists the owner is there by an earlier Take.
func (e *Engine) begun(id hold.ID, err error) bool {
	_, there := e.Ledger.Owner(id)
	return there && !errors.Is(err, ledger.ErrExists)
}

// doom marks an owner that could not be taken. The mark stays until the owner's release
// is promised.
func (e *Engine) doom(id hold.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doomed[id] = nil
}

// Doomed reports whether an owner could not be taken and its release is not promised
// yet: the ledger says that the owner is wanted, but nobody wants it any more.
func (e *Engine) Doomed(id hold.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, doomed := e.doomed[id]
	return doomed
}

// undo releases an owner that could not be taken. If the promise cannot be written, the
// engine tries it again for ever.
func (e *Engine) undo(ctx context.Context, o hold.Owner) error {
	all, err := e.Promise(AskedBy(ctx, AskerFailure), []hold.ID{o.ID})
	if err != nil && e.doomAgain(o, err) {
		e.event(Owing, o, "ledger", err)
	}
	return errors.Join(err, e.Depart(ctx, all))
}

// doomAgain arranges for another try to promise a doomed owner's release, and returns
// true, unless somebody else has promised it meanwhile.
func (e *Engine) doomAgain(o hold.Owner, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, doomed := e.doomed[o.ID]
	if doomed {
		e.doomed[o.ID] = t.again(e, o, err, func() { _ = e.undo(e.ctx, o) })
	}
	return doomed
}

// absolve takes owners whose release is promised off the list of the doomed.
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

// takeable refuses an owner that this program could not release again.
func (e *Engine) takeable(o hold.Owner) error {
	if !o.Wanted() {
		return fmt.Errorf("taking %s: it is being released already", o.ID)
	}
	for _, h := range o.Holds {
		if _, err := e.kind(h); err != nil {
			return fmt.Errorf("taking %s: %w", o.ID, err)
		}
		if h.Owner != o.ID {
			return fmt.Errorf("taking %s: its hold %s belongs to another owner", o.ID, h)
		}
	}
	return nil
}

// acquireAll acquires an owner's holds from the index `from` on, and then waits until all of them
// can be used. It stops at the first hold that fails, and returns the index of that hold. A failed
// hold of stage Tell does not stop acquireAll. The engine writes what a hold discovers to the
// ledger before it acquires the next hold. Once no hold is left to acquire, the one behind in a line may go on (turn.Spot).
func (e *Engine) acquireAll(ctx context.Context, o hold.Owner, from int) (failed int, err error) {
	for i := from; i < len(o.Holds); {
		errs := e.abreast(ctx, o.Holds[i:])
		if i+len(errs) == len(o.Holds) && errors.Join(errs...) == nil {
			turn.SpotOf(ctx).Done()
		}
		for _, err := range errs {
			h := o.Holds[i]
			i++
			k, _ := e.kind(h)
			if k.Discovers {
				err = errors.Join(err, e.learn(ctx, o, i))
			}
			if err == nil {
				continue
			}
			if k.Stage != hold.Tell || ctx.Err() != nil {
				return i - 1, err
			}
			e.event(Drifted, o, k.Name(), err) // the next sweep tries again
		}
	}
	if err := e.settle(ctx, o.Holds[from:]); err != nil {
		return len(o.Holds), err
	}
	return len(o.Holds), e.stillWanted(ctx, o.ID)
}

// abreast acquires the first of some holds, and beside it those right behind it whose kinds allow that
// (hold.Kind.Beside). It returns an answer for each hold that it tried to acquire, once it has all of them.
// If a kind panics, so does abreast, once all the others have answered.
func (e *Engine) abreast(ctx context.Context, holds []hold.Hold) []error {
	n := 1
	for n < len(holds) && e.goBeside(holds[n-1], holds[n]) {
		n++
	}
	errs, panics := make([]error, n), make([]any, n)
	var beside sync.WaitGroup
	for i := 1; i < n; i++ {
		beside.Go(func() {
			defer func() { panics[i] = recover() }()
			errs[i] = e.acquire(ctx, holds[i])
		})
	}
	func() {
		defer beside.Wait() // also after a panic of the first kind
		errs[0] = e.acquire(ctx, holds[0])
	}()
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
	return errs
}

// goBeside reports whether a hold is acquired beside the hold ahead of it.
func (e *Engine) goBeside(ahead, h hold.Hold) bool {
	before, err := e.kind(ahead)
	k, also := e.kind(h)
	return err == nil && also == nil && k.Beside && !k.Discovers && !before.Discovers
}

// Settle waits until an owner's holds can be used.
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

// acquire takes one hold, unless ctx has ended, as it does when the owner is released.
func (e *Engine) acquire(ctx context.Context, h hold.Hold) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k, err := e.kind(h)
	if err != nil {
		return err
	}
	err = e.inTurn(ctx, k, func() error {
		return e.act(ctx, k, "acquire", h, k.Acquire)
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

// stillWanted looks into the ledger once more before Take or Change answers: an owner
// whose release was promised meanwhile counts as not taken.
func (e *Engine) stillWanted(ctx context.Context, id hold.ID) error {
	if o, ok := e.Ledger.Owner(id); !ok || !o.Wanted() {
		return ErrOvertaken
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
