package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/hold"
)

// Restore brings the world to what the ledger says, after a start: it is Resume
// and then Mend of what is missing.
//
// An error is joined of what could not be put right. It is no reason not to
// serve: the next sweep tries again.
func (e *Engine) Restore(ctx context.Context) error {
	missing, err := e.Resume(ctx, nil)
	return errors.Join(err, e.Mend(ctx, missing))
}

// Missing is what a look found not to be as the ledger has it.
type Missing []drift

// Resume is what has to be done after a start before anybody else uses the engine:
// who was releasing is cut off again and goes to its end; who stands is
// verified, and released where the home has ended. It waits for no pod: what has
// to be taken again is returned, for Mend, beside which the engine may be used.
func (e *Engine) Resume(ctx context.Context, look *hold.Look) (Missing, error) {
	var releasing []hold.ID
	var standing []hold.Owner
	for _, o := range e.Ledger.Owners() {
		if e.stands(o) {
			standing = append(standing, o)
		}
		if !o.Wanted() {
			releasing = append(releasing, o.ID)
		}
	}
	err := errors.Join(e.Release(ctx, releasing), e.rollBackAll(ctx, standing))
	var missing Missing
	var homeless []hold.ID
	for _, d := range e.verify(ctx, look, standing) {
		if e.Homeless != nil && e.Homeless(d.owner) && d.isSeen() {
			homeless = append(homeless, d.owner.ID)
			e.event(Drifted, d.owner, d.hold.Spec.Kind(), d.err)
		} else {
			missing = append(missing, d)
		}
	}
	missing = e.unended(missing)
	if len(homeless) > 0 {
		err = errors.Join(err, e.Release(ctx, homeless))
	}
	return missing, err
}

// drift is a hold that is not as its spec says.
type drift struct {
	owner hold.Owner
	hold  hold.Hold
	err   error // wraps hold.ErrGone or hold.ErrChanged; else it could not be seen
}

// isSeen reports whether the hold was seen not to be as its spec says: what could
// not be seen is no reason to touch it.
func (d drift) isSeen() bool {
	return errors.Is(d.err, hold.ErrGone) || errors.Is(d.err, hold.ErrChanged)
}

// verify compares what owners hold with the world, one Verify a kind, all beside
// each other. What it finds is in the order of the kinds.
func (e *Engine) verify(ctx context.Context, look *hold.Look, owners []hold.Owner) Missing {
	return e.verifyKinds(ctx, look, e.Kinds, owners)
}

func (e *Engine) verifyKinds(ctx context.Context, look *hold.Look, kinds hold.Kinds, owners []hold.Owner) Missing {
	found := make([]Missing, len(kinds))
	var looks sync.WaitGroup
	for i, k := range kinds {
		var holds []hold.Hold
		var of []hold.Owner
		for _, o := range owners {
			for _, h := range o.Settled() {
				if h.Spec.Kind() == k.Name() {
					holds, of = append(holds, h), append(of, o)
				}
			}
		}
		if len(holds) == 0 {
			continue
		}
		looks.Go(func() {
			for j, err := range e.verifyKind(ctx, look, k, holds) {
				if err != nil {
					found[i] = append(found[i], drift{of[j], holds[j], err})
				}
			}
		})
	}
	looks.Wait()
	return slices.Concat(found...)
}

func (e *Engine) verifyKind(ctx context.Context, look *hold.Look, k hold.Kind, holds []hold.Hold) []error {
	errs, err := aside(ctx, e, k, "verify", len(holds), func(ctx context.Context) ([]error, error) {
		errs := k.Verify(ctx, look, holds)
		return errs, errors.Join(errs...)
	})
	if errs == nil { // it saw nothing
		errs = make([]error, len(holds))
		for i, h := range holds {
			errs[i] = fmt.Errorf("looking at %s: %w", h.Spec, err)
		}
	}
	return errs
}

// Verify compares what one owner holds with the world and says what differs,
// joined; nil if nothing does.
func (e *Engine) Verify(ctx context.Context, o hold.Owner) error {
	var errs []error
	for _, d := range e.verify(ctx, nil, []hold.Owner{o}) {
		errs = append(errs, d.err)
	}
	return errors.Join(errs...)
}

// mendsAtOnce is how many owners get back what they lack beside each other.
const mendsAtOnce = 8

// Mend acquires what is missing again. Nobody waits for another owner longer than
// Options.Mending. Owners for which it can never succeed are released, all in one
// commit.
func (e *Engine) Mend(ctx context.Context, missing Missing) error {
	var order []hold.ID
	of := map[hold.ID]Missing{}
	for _, d := range missing {
		id := d.owner.ID
		if of[id] == nil {
			order = append(order, id)
		}
		of[id] = append(of[id], d)
	}
	errs := make([]error, len(order))
	var all sync.WaitGroup
	places := make(chan struct{}, mendsAtOnce)
	for i, id := range order {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			errs[i] = e.mendOne(ctx, of[id])
		})
	}
	all.Wait()
	var homeless []hold.ID
	for i, id := range order {
		if errors.Is(errs[i], hold.ErrHomeless) {
			homeless, errs[i] = append(homeless, id), nil
		}
	}
	if len(homeless) > 0 {
		errs = append(errs, e.Release(ctx, homeless))
	}
	return errors.Join(errs...)
}

// mendOne acquires what one owner lacks, within Options.Mending, whatever a kind
// does about the end of its context.
func (e *Engine) mendOne(ctx context.Context, missing Missing) error {
	ctx, cancel := context.WithTimeout(ctx, e.Mending)
	defer cancel()
	mended := make(chan error, 1)
	begun := e.background(func() {
		var errs []error
		for _, d := range missing {
			e.event(Drifted, d.owner, d.hold.Spec.Kind(), d.err)
			if err := e.reacquire(ctx, d); !errors.Is(err, ErrOvertaken) { // else it was released meanwhile
				errs = append(errs, err)
			}
		}
		mended <- errors.Join(errs...)
	})
	if !begun {
		return fmt.Errorf("taking %s again: %w", missing[0].hold, errClosing)
	}
	select {
	case err := <-mended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("taking %s again: %w", missing[0].hold, context.Cause(ctx))
	}
}

// reacquire takes one hold of an owner again. It waits for the owner's lock and
// then looks again, or it would bring back what was cut off meanwhile.
func (e *Engine) reacquire(ctx context.Context, d drift) error {
	if !d.isSeen() {
		return d.err
	}
	ctx, leave, err := e.enter(ctx, d.owner.ID, false)
	if err != nil {
		return err
	}
	defer leave()
	if o, ok := e.Ledger.Owner(d.owner.ID); !ok || !e.stands(o) || !has(o.Settled(), d.hold.Spec) {
		return ErrOvertaken // released, or changed
	}
	if e.going(d.owner) {
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
		err = e.rediscover(ctx, k, d.hold)
	} else {
		err = e.acquire(ctx, d.hold)
	}
	if e.going(d.owner) { // since it was looked: whoever cut it off may have done so before
		return errors.Join(err, e.cutOff(ctx, d.owner.Holds), ErrOvertaken)
	}
	return err
}

// going reports whether nothing of a wanted owner is to be taken again.
func (e *Engine) going(o hold.Owner) bool {
	return e.Doomed(o.ID) || e.Going != nil && e.Going(o)
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
	err = e.acquire(ctx, h)
	o, _ := e.Ledger.Owner(h.Owner)
	e.mu.Lock()
	o.Holds = slices.Clone(e.learned(o).Holds)
	e.mu.Unlock()
	for i, own := range o.Holds {
		if own.Spec.Kind() == k.Name() && own.Spec.String() == was {
			o.Holds[i] = h
			err = errors.Join(err, e.relearn(ctx, o))
		}
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrOvertaken) {
		return cause
	}
	return err
}

// Repair verifies owners and takes again what they lack: for those who are about to
// rely on it. What a kind does not answer in time is an error. Of an owner that could
// not be taken, and whose release is not promised yet, it answers ErrOvertaken. Of
// one whose release is promised, maybe meanwhile, it answers nil, as nothing is to be
// repaired: who wants to rely on the owner looks afterwards whether it is wanted.
func (e *Engine) Repair(ctx context.Context, ids ...hold.ID) error {
	return e.repair(ctx, e.Kinds, ids)
}

// RepairSoon is Repair for those who see that something was changed under owners,
// and do not wait for the sweep. A kind that has lately taken too long to look is
// left to that, and is no error: nobody is told by it that all is well.
func (e *Engine) RepairSoon(ctx context.Context, ids ...hold.ID) error {
	return e.repair(ctx, slices.DeleteFunc(slices.Clone(e.Kinds), e.hesitates), ids)
}

func (e *Engine) repair(ctx context.Context, kinds hold.Kinds, ids []hold.ID) error {
	var standing []hold.Owner
	for _, id := range ids {
		if o, ok := e.Ledger.Owner(id); ok && e.stands(o) {
			standing = append(standing, o)
		}
	}
	err := e.Mend(ctx, e.unended(e.verifyKinds(ctx, nil, kinds, standing)))
	if slices.ContainsFunc(ids, e.Doomed) {
		err = errors.Join(err, ErrOvertaken)
	}
	return err
}
