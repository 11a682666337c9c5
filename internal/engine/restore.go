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

// Restore makes the world agree with the ledger after a start: it calls Resume, and then
// Mend with what is missing.
//
// An error joins all that could not be put right. A caller that gets an error can serve all the
// same: the next sweep tries again.
func (e *Engine) Restore(ctx context.Context) error {
	missing, err := e.Resume(ctx, nil)
	return errors.Join(err, e.Mend(ctx, missing))
}

// Missing lists the holds that a look did not find as the ledger has them.
type Missing []drift

// Resume does what has to be done after a start before anybody else uses the engine. It
// cuts off again the owners that are releasing, and goes on with their release. It rolls
// back changes that had not ended. It verifies the owners that stand, and releases those
// whose home has ended. It waits for no pod: it only returns the holds that have to be
// taken again. Mend takes them, and the engine may be used meanwhile.
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
		err = errors.Join(err, e.Release(AskedBy(ctx, AskerHome), homeless))
	}
	return missing, err
}

// Unmade returns the owners whose hold of a kind is gone or half-made.
func (m Missing) Unmade(kind string) map[hold.ID]bool {
	all := map[hold.ID]bool{}
	for _, d := range m {
		if d.hold.Spec.Kind() == kind && (errors.Is(d.err, hold.ErrGone) || errors.Is(d.err, hold.ErrHalfMade)) {
			all[d.owner.ID] = true
		}
	}
	return all
}

// drift is a hold that is not as its spec says, or that could not be seen.
type drift struct {
	owner hold.Owner
	hold  hold.Hold
	err   error // wraps hold.ErrGone or hold.ErrChanged; otherwise the hold could not be seen
}

// isSeen reports whether Verify has seen that the hold is gone or changed. Nobody touches a
// hold that could not be seen.
func (d drift) isSeen() bool {
	return errors.Is(d.err, hold.ErrGone) || errors.Is(d.err, hold.ErrChanged)
}

// verify compares owners' holds with the world. It calls one Verify for each kind, all at
// once, and returns the drifts in the order of the kinds.
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
	if errs == nil { // the kind has seen nothing
		errs = make([]error, len(holds))
		for i, h := range holds {
			errs[i] = fmt.Errorf("looking at %s: %w", h.Spec, err)
		}
	}
	return errs
}

// Verify compares one owner's holds with the world, and returns all differences, joined. It
// returns nil if nothing differs.
func (e *Engine) Verify(ctx context.Context, o hold.Owner) error {
	var errs []error
	for _, d := range e.verify(ctx, nil, []hold.Owner{o}) {
		errs = append(errs, d.err)
	}
	return errors.Join(errs...)
}

// mendsAtOnce is how many owners one Mend mends at once.
const mendsAtOnce = 8

// Mend acquires the missing holds again: an owner's after those of the owners that it needs. Each owner has
// Options.Mending for that, so that no owner delays another one for longer. Owners for which Mend can never succeed,
// because their home is gone, are released, all in one commit.
func (e *Engine) Mend(ctx context.Context, missing Missing) error {
	order, of := missing.byOwner()
	errs := make([]error, len(order))
	ended := map[hold.ID]chan struct{}{}
	for _, id := range order {
		ended[id] = make(chan struct{})
	}
	var all sync.WaitGroup
	places := make(chan struct{}, mendsAtOnce)
	for i, id := range order {
		places <- struct{}{}
		all.Go(func() {
			defer func() { close(ended[id]); <-places }()
			for _, need := range of[id][0].owner.Needs {
				if done := ended[need]; done != nil { // need comes before id in the order, and so has a place, or had one
					<-done
				}
			}
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
		errs = append(errs, e.Release(AskedBy(ctx, AskerHome), homeless))
	}
	return errors.Join(errs...)
}

// byOwner returns what each owner misses, and the owners in an order in which each comes behind the owners that it needs.
func (m Missing) byOwner() (order []hold.ID, of map[hold.ID]Missing) {
	of = map[hold.ID]Missing{}
	for _, d := range m {
		of[d.owner.ID] = append(of[d.owner.ID], d)
	}
	placed := map[hold.ID]bool{}
	var place func(id hold.ID)
	place = func(id hold.ID) {
		if of[id] == nil || placed[id] {
			return
		}
		placed[id] = true
		for _, need := range of[id][0].owner.Needs {
			place(need)
		}
		order = append(order, id)
	}
	for _, d := range m {
		place(d.owner.ID)
	}
	return order, of
}

// mendOne acquires again what one owner lacks. It returns within Options.Mending, also if a
// kind goes on after its context has ended.
func (e *Engine) mendOne(ctx context.Context, missing Missing) error {
	ctx, cancel := context.WithTimeout(ctx, e.Mending)
	defer cancel()
	mended := make(chan error, 1)
	begun := e.background(func() {
		var errs []error
		for _, d := range missing {
			e.event(Drifted, d.owner, d.hold.Spec.Kind(), d.err)
			err := e.reacquire(ctx, d)
			if err == nil {
				e.event(Mended, d.owner, d.hold.Spec.Kind(), d.err)
			}
			if !errors.Is(err, ErrOvertaken) { // ErrOvertaken: released or changed meanwhile
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

// reacquire takes one hold of an owner again. It waits for the owner's turn, and then looks
// into the ledger again, or it would bring back a hold that was cut off meanwhile.
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
	switch going, err := e.going(d.owner); {
	case going:
		return ErrOvertaken
	case err != nil:
		return err
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
	// The owner may be going since the check above, and may have been cut off before the hold was
	// acquired.
	switch going, unsure := e.going(d.owner); {
	case going:
		return errors.Join(err, e.cutOff(ctx, d.owner.Holds), ErrOvertaken)
	case unsure != nil: // a cut would be for good
		return errors.Join(err, unsure, e.severHolds(ctx, d.owner.Holds))
	}
	return err
}

// going reports whether a wanted owner goes all the same: it is doomed, or its release was
// asked for (Options.Going). None of its holds is to be taken again. An error says that
// nobody can tell for the moment.
func (e *Engine) going(o hold.Owner) (bool, error) {
	if e.Doomed(o.ID) {
		return true, nil
	}
	if e.Going == nil {
		return false, nil
	}
	going, err := e.Going(o.ID)
	if err != nil {
		return false, fmt.Errorf("asking whether a deletion of %s waits: %w", o.ID, err)
	}
	return going, nil
}

// rediscover takes again a hold whose kind discovers, and writes down what the hold discovers. The
// ledger may lack what the hold discovered before, if the program ended between an Acquire and its
// commit. h is as somebody has seen it: the owner's Take may have written down since what it discovered, and rediscover keeps that if the
// hold cannot be taken again.
func (e *Engine) rediscover(ctx context.Context, k hold.Kind, h hold.Hold) error {
	find := func(o hold.Owner) int {
		return slices.IndexFunc(o.Holds, func(own hold.Hold) bool { return has([]hold.Hold{own}, h.Spec) })
	}
	o, _ := e.Ledger.Owner(h.Owner)
	o = e.withLearned(o)
	at := find(o)
	if at < 0 {
		return ErrOvertaken
	}
	var err error
	if h.Spec, err = copied(k, o.Holds[at].Spec); err != nil { // the ledger's own spec must not be written into
		return err
	}
	err = e.acquire(ctx, h)
	o, _ = e.Ledger.Owner(h.Owner)
	o = e.withLearned(o)
	if at = find(o); at >= 0 {
		o.Holds[at] = h
		err = errors.Join(err, e.relearn(ctx, o))
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrOvertaken) {
		return cause
	}
	return err
}

// copied returns a copy of a spec.
func copied(k hold.Kind, s hold.Spec) (hold.Spec, error) {
	raw, err := json.Marshal(s)
	if err == nil {
		copy := k.New()
		if err = json.Unmarshal(raw, copy); err == nil {
			return copy, nil
		}
	}
	return nil, fmt.Errorf("copying %s: %w", s, err)
}

// Repair verifies owners, and takes again what they lack. It is for callers that are about
// to rely on the owners. It returns an error if a kind does not answer in time, and
// ErrOvertaken if an owner is doomed. If an owner's release is promised, maybe meanwhile,
// Repair repairs nothing of it and returns nil: a caller that wants to rely on the owner
// has to look afterwards whether it is wanted.
func (e *Engine) Repair(ctx context.Context, ids ...hold.ID) error {
	return e.repair(ctx, e.Kinds, ids)
}

// RepairSoon is Repair for callers that have seen somebody change things that owners hold,
// and do not want to wait for the sweep. It leaves a kind that has lately taken too long to
// look (hesitates) to the sweep, and returns no error for it: nil does not say that all is
// well.
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
