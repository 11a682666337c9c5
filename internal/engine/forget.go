package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// forget ends releases: in one commit the ledger forgets the owners, and their names
// become free or begin to rest; names that nobody can have used (noteUnused) do not rest. forget
// then ends the releases of the owners that the forgotten owners needed, if these have nothing
// left.
func (e *Engine) forget(ls []*leaving) {
	if len(ls) == 0 {
		return
	}
	e.tellEnding(ls)
	now := e.Clock.Now()
	ops := make([]ledger.Op, len(ls))
	e.mu.Lock()
	for i, l := range ls {
		ops[i] = ledger.Forget(l.owner.ID, now)
		if e.unused[l.owner.ID] {
			ops[i] = ledger.ForgetUnused(l.owner.ID)
		}
	}
	e.mu.Unlock()
	err := e.Ledger.Commit(e.ctx, ops...)
	if err != nil && len(ls) > 1 { // one owner that cannot be forgotten must not keep the other owners from being forgotten
		for _, l := range ls {
			e.forget([]*leaving{l})
		}
		return
	}
	if err != nil {
		e.forgetLater(ls[0], err)
		return
	}
	for _, l := range ls {
		e.left(l)
	}
	e.forget(e.ended(ls))
}

// tellEnding calls Options.Ending with owners that are about to be forgotten.
func (e *Engine) tellEnding(ls []*leaving) {
	if e.Ending == nil {
		return
	}
	var evs []Event
	e.mu.Lock()
	for _, l := range ls {
		if !l.told {
			l.told = true
			evs = append(evs, Event{Type: Released, Owner: l.owner, Past: e.past(l)})
		}
	}
	e.mu.Unlock()
	if len(evs) > 0 {
		e.Ending(evs)
	}
}

// left says, by an event and to the tracer, that nothing of an owner is left.
func (e *Engine) left(l *leaving) {
	if e.Tracer != nil {
		e.Tracer.Left(l.owner.ID)
	}
	if e.Event == nil {
		return
	}
	e.mu.Lock()
	past := e.past(l)
	e.mu.Unlock()
	e.Event(Event{Type: Released, Owner: l.owner, Past: past})
}

// ended takes forgotten owners off the list of the leaving, and lets the owners that they
// needed go on. It returns the needed owners that can now be forgotten.
func (e *Engine) ended(ls []*leaving) (last []*leaving) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range ls {
		delete(e.leaving, l.owner.ID)
		delete(e.unwritten, l.owner.ID)
		delete(e.over, l.owner.ID)
		delete(e.asked, l.owner.ID)
		delete(e.unused, l.owner.ID)
		close(l.gone)
		last = append(last, e.goOn(e.behind(l))...)
	}
	return last
}

// goOn sends holds of leaving owners to their lines, if the holds had to wait for an owner that
// needed theirs. goOn returns the owners that can now be forgotten. Engine.mu is held.
func (e *Engine) goOn(ids []hold.ID) (last []*leaving) {
	for _, id := range ids {
		l := e.leaving[id]
		if l == nil {
			continue
		}
		if e.advance(l) {
			last = append(last, l)
		}
		e.note(l)
	}
	return last
}

// unneeded lets the releasing owners among ids go on, because a standing owner no longer needs
// them.
func (e *Engine) unneeded(ids []hold.ID) {
	e.mu.Lock()
	last := e.goOn(ids)
	due := e.due(slices.Clone(ids))
	e.mu.Unlock()
	for _, id := range due {
		e.leave(id, nil)
	}
	if len(last) > 0 {
		e.background(func() { e.forget(last) })
	}
}

// forgetLater arranges for another try of a forget that could not be written.
func (e *Engine) forgetLater(l *leaving, err error) {
	if e.ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	tell := l.trouble.tell()
	l.trouble = l.trouble.again(e, l.owner, err, func() { e.forget([]*leaving{l}) })
	e.note(l)
	e.mu.Unlock()
	if tell {
		e.event(Owing, l.owner, "ledger", err)
	}
}

// freeNames frees the names of an owner that has nothing left but Tell holds whose release
// has failed. If freeNames fails, the names are freed when the owner is forgotten.
func (e *Engine) freeNames(id hold.ID) {
	err := e.Ledger.Commit(e.ctx, ledger.Update(id, func(o *hold.Owner) error {
		o.Names = nil
		return nil
	}))
	if o, ok := e.Ledger.Owner(id); ok && err != nil && !errors.Is(err, context.Canceled) {
		e.event(Drifted, o, "ledger", err)
	}
}

// Wait waits until the ledger has forgotten each owner that is being released. It does not wait for
// unknown ids or for owners that are wanted.
func (e *Engine) Wait(ctx context.Context, ids ...hold.ID) error {
	return e.await(ctx, ids, func(*leaving) <-chan struct{} { return nil })
}

// WaitKind waits until owners that are being released have given back their holds of one
// kind, whatever else they owe. It is for callers that need the place of such a hold. If the kind says so (hold.Kind.Keyed), WaitKind
// also takes the holds out of the owners' records.
func (e *Engine) WaitKind(ctx context.Context, kind string, ids ...hold.ID) error {
	if err := e.withoutKind(ctx, kind, ids); err != nil {
		return err
	}
	if k, known := e.Kinds.Get(kind); !known || !k.Keyed {
		return nil
	}
	for _, id := range ids {
		if err := e.strike(ctx, id, func(h hold.Hold) bool { return h.Spec.Kind() == kind }); err != nil {
			return err
		}
	}
	return nil
}

// withoutKind waits until releasing owners have given back their holds of a kind.
func (e *Engine) withoutKind(ctx context.Context, kind string, ids []hold.ID) error {
	return e.await(ctx, ids, func(l *leaving) <-chan struct{} {
		gone := l.without[kind]
		if gone == nil {
			gone = make(chan struct{})
			if !l.has(kind) {
				close(gone)
				return gone
			}
			if l.without == nil {
				l.without = map[string]chan struct{}{}
			}
			l.without[kind] = gone
		}
		return gone
	})
}

// strike takes holds that are released out of a releasing owner's record, unless the ledger has forgotten the owner. That a hold is released is
// known to this engine alone: the next one would otherwise release the hold once more.
func (e *Engine) strike(ctx context.Context, id hold.ID, released func(hold.Hold) bool) error {
	if o, ok := e.Ledger.Owner(id); !ok || o.Wanted() || !slices.ContainsFunc(o.Holds, released) {
		return nil
	}
	err := e.Ledger.Commit(ctx, ledger.Update(id, func(o *hold.Owner) error {
		if b := o.Before; b != nil { // how many holds it had does not matter to a release
			less := *b
			less.Holds -= len(slices.DeleteFunc(slices.Clone(o.Settled()), func(h hold.Hold) bool { return !released(h) }))
			o.Before = &less
		}
		o.Holds = slices.DeleteFunc(o.Holds, released)
		return nil
	}))
	if err != nil && !errors.Is(err, ledger.ErrUnknown) { // ErrUnknown: the owner is forgotten
		return fmt.Errorf("writing down what %s has given back: %w", id, err)
	}
	return nil
}

// Tried waits for each owner that is being released until the owner is forgotten, or until the
// owner owes something and the engine can try nothing else of the owner for now. Tried also waits
// for the end of tries that Retry has asked for.
func (e *Engine) Tried(ctx context.Context, ids ...hold.ID) error {
	return e.await(ctx, ids, func(l *leaving) <-chan struct{} { return l.stuck })
}

// await waits for each owner until the owner is forgotten, or until the channel that enough returns
// for the owner's release is closed. await calls enough with Engine.mu held.
func (e *Engine) await(ctx context.Context, ids []hold.ID, enough func(*leaving) <-chan struct{}) error {
	defer e.press()()
	for _, id := range ids {
		l, err := e.underway(ctx, id)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		e.hasten()
		e.mu.Lock()
		suffices := enough(l)
		e.mu.Unlock()
		select {
		case <-l.gone:
		case <-suffices:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// underway returns the release of an owner, or nil if there is none. Between the promise
// and the departure the ledger says that an owner is releasing, but the engine has no
// entry for it. Then underway begins the departure, or joins it, as the caller that made
// the promise does.
func (e *Engine) underway(ctx context.Context, id hold.ID) (*leaving, error) {
	for {
		e.mu.Lock()
		l := e.leaving[id]
		e.mu.Unlock()
		if l != nil {
			return l, nil
		}
		if o, ok := e.Ledger.Owner(id); !ok || o.Wanted() {
			return nil, nil
		}
		// Engine.leaving has the entry also after a failed cut: then the loop finds it.
		if err := e.follow(ctx, id, e.leave(id, nil)); err != nil && (ctx.Err() != nil || e.ctx.Err() != nil) {
			return nil, err
		}
	}
}
