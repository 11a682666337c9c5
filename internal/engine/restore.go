package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// Restore brings the world to what the ledger says, after a start: who was
// releasing is cut off again and goes to its end; who is wanted is verified,
// gets what is missing, and is released where that cannot be because what it
// lived in is gone. Nothing else may use the engine before it returns.
//
// An error is joined of what could not be put right. It is no reason not to
// serve: the next sweep tries again.
func (e *Engine) Restore(ctx context.Context) error {
	var releasing []hold.ID
	var wanted []hold.Owner
	for _, o := range e.Ledger.Owners() {
		if o.Wanted() {
			wanted = append(wanted, o)
		} else {
			releasing = append(releasing, o.ID)
		}
	}
	var errs []error
	errs = append(errs, e.Release(ctx, releasing))
	drifts := e.verify(ctx, wanted)
	errs = append(errs, e.repair(ctx, drifts))
	return errors.Join(errs...)
}

// drift is a hold that is not as its spec says.
type drift struct {
	owner hold.Owner
	hold  hold.Hold
	err   error // wraps hold.ErrGone or hold.ErrChanged; else it could not be seen
}

// verify compares what owners hold with the world, one Verify a kind, in the
// order of the kinds.
func (e *Engine) verify(ctx context.Context, owners []hold.Owner) []drift {
	var drifts []drift
	for _, k := range e.Kinds {
		var holds []hold.Hold
		var of []hold.Owner
		for _, o := range owners {
			for _, h := range o.Holds {
				if h.Spec.Kind() == k.Name() {
					holds, of = append(holds, h), append(of, o)
				}
			}
		}
		if len(holds) == 0 {
			continue
		}
		for i, err := range e.verifyKind(ctx, k, holds) {
			if err != nil {
				drifts = append(drifts, drift{of[i], holds[i], err})
			}
		}
	}
	return drifts
}

func (e *Engine) verifyKind(ctx context.Context, k hold.Kind, holds []hold.Hold) (errs []error) {
	e.observed(k.Name(), "verify", len(holds), func() error {
		errs = k.Verify(ctx, holds)
		return errors.Join(errs...)
	})
	return errs
}

// Verify compares what one owner holds with the world and says what differs,
// joined; nil if nothing does.
func (e *Engine) Verify(ctx context.Context, o hold.Owner) error {
	var errs []error
	for _, d := range e.verify(ctx, []hold.Owner{o}) {
		errs = append(errs, d.err)
	}
	return errors.Join(errs...)
}

// repair acquires what is missing again. Owners for which that can never
// succeed are released, all in one commit.
func (e *Engine) repair(ctx context.Context, drifts []drift) error {
	var errs []error
	var homeless []hold.ID
	for _, d := range drifts {
		e.event(api.EventDrift, d.owner, d.hold.Spec.Kind(), d.err)
		err := e.reacquire(ctx, d)
		switch {
		case errors.Is(err, hold.ErrHomeless):
			homeless = append(homeless, d.owner.ID)
		case errors.Is(err, ErrOvertaken): // released meanwhile
		case err != nil:
			errs = append(errs, err)
		}
	}
	if len(homeless) > 0 {
		errs = append(errs, e.Release(ctx, homeless))
	}
	return errors.Join(errs...)
}

// reacquire takes one hold of an owner again. It waits for the owner's lock and
// then looks again, or it would bring back what was cut off meanwhile.
func (e *Engine) reacquire(ctx context.Context, d drift) error {
	if !errors.Is(d.err, hold.ErrGone) && !errors.Is(d.err, hold.ErrChanged) {
		return d.err // it could not be seen: that is no reason to touch it
	}
	ctx, leave, err := e.enter(ctx, d.owner.ID, false)
	if err != nil {
		return err
	}
	defer leave()
	if err := e.stillWanted(ctx, d.owner.ID); err != nil {
		return err
	}
	if e.Going != nil && e.Going(d.owner) {
		return ErrOvertaken
	}
	if e.Homeless != nil && e.Homeless(d.owner) {
		return fmt.Errorf("%s: %w", d.hold.Spec, hold.ErrHomeless)
	}
	k, err := e.kind(d.hold)
	if err != nil {
		return err
	}
	if k.Discovers {
		return e.rediscover(ctx, k, d.hold)
	}
	return e.acquire(ctx, d.hold)
}

// rediscover takes a hold whose kind discovers again, and writes down what was
// discovered: the program may have ended in between the last time.
func (e *Engine) rediscover(ctx context.Context, k hold.Kind, h hold.Hold) error {
	was := h.Spec.String()
	raw, err := json.Marshal(h.Spec)
	if err != nil {
		return fmt.Errorf("copying %s: %w", h.Spec, err)
	}
	h.Spec = k.New() // the one of the ledger is not ours to write into
	if err := json.Unmarshal(raw, h.Spec); err != nil {
		return fmt.Errorf("copying %s: %w", was, err)
	}
	if err := e.acquire(ctx, h); err != nil {
		return err
	}
	err = e.Ledger.Commit(ctx, ledger.Update(h.Owner, func(o *hold.Owner) error {
		for i := range o.Holds {
			if s := o.Holds[i].Spec; s.Kind() == k.Name() && s.String() == was {
				o.Holds[i].Spec = h.Spec
			}
		}
		return nil
	}))
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrOvertaken) {
		return cause
	}
	if err != nil {
		return fmt.Errorf("writing down what was discovered of %s: %w", was, err)
	}
	return nil
}

// Repair verifies one owner and takes again what it lacks: for those who see
// that something was changed under them, and do not wait for the sweep.
func (e *Engine) Repair(ctx context.Context, id hold.ID) error {
	o, ok := e.Ledger.Owner(id)
	if !ok || !o.Wanted() {
		return nil
	}
	return e.repair(ctx, e.verify(ctx, []hold.Owner{o}))
}
