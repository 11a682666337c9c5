package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// forget ends releases: in one commit the owners are no more, and their names
// are free or rest.
func (e *Engine) forget(ls []*leaving) {
	if len(ls) == 0 {
		return
	}
	now := e.Clock.Now()
	ops := make([]ledger.Op, len(ls))
	for i, l := range ls {
		ops[i] = ledger.Forget(l.owner.ID, now)
	}
	err := e.Ledger.Commit(e.ctx, ops...)
	if err != nil && len(ls) > 1 { // one of them must not keep the others
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
		e.event(Released, l.owner, "", nil)
	}
	e.forget(e.ended(ls))
}

// ended takes forgotten owners off the list of those that leave, and returns whom they
// needed that has nothing left but the forget.
func (e *Engine) ended(ls []*leaving) (last []*leaving) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range ls {
		delete(e.leaving, l.owner.ID)
		delete(e.unwritten, l.owner.ID)
		delete(e.over, l.owner.ID)
		close(l.gone)
		last = append(last, e.goOn(l.owner.Needs)...)
	}
	return last
}

// goOn lets owners that leave go on with what had to wait for somebody who needed them,
// and returns those that have nothing left but the forget. Engine.mu is held.
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

// unneeded lets owners go on that somebody who stands does not need any more.
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

// forgetLater tries a forget again that could not be written.
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

// freeNames frees the names of an owner of which only untold Tell holds are
// left. Should it fail, the forget does it later.
func (e *Engine) freeNames(id hold.ID) {
	err := e.Ledger.Commit(e.ctx, ledger.Update(id, func(o *hold.Owner) error {
		o.Names = nil
		return nil
	}))
	if o, ok := e.Ledger.Owner(id); ok && err != nil && !errors.Is(err, context.Canceled) {
		e.event(Drifted, o, "ledger", err)
	}
}

// Wait waits until owners that are being released are forgotten. Unknown ids
// are so already; one that is wanted is not waited for.
func (e *Engine) Wait(ctx context.Context, ids ...hold.ID) error {
	return e.await(ctx, ids, func(*leaving) <-chan struct{} { return nil })
}

// WaitKind waits until owners that are being released have given back their holds
// of one kind, whatever else of them is owed: for who needs the place of such a
// hold.
func (e *Engine) WaitKind(ctx context.Context, kind string, ids ...hold.ID) error {
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

// Tried waits until owners that are being released are forgotten, or all that
// can be tried of them has been, and something is owed. A try that was asked for
// (Retry) counts when it has ended.
func (e *Engine) Tried(ctx context.Context, ids ...hold.ID) error {
	return e.await(ctx, ids, func(l *leaving) <-chan struct{} { return l.stuck })
}

// await waits for each owner to be forgotten, or for what enough returns of it,
// which is called with Engine.mu held.
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

// underway returns the release of an owner, or nil if there is none. Between
// the promise and the cut an owner is releasing in the ledger alone: then it is
// sent on its way, as by whoever made the promise.
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
		// It is on its way also if its cut has failed.
		if err := e.follow(ctx, id, e.leave(id, nil)); err != nil && (ctx.Err() != nil || e.ctx.Err() != nil) {
			return nil, err
		}
	}
}
