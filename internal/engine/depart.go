package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

const (
	// cutting is how long a kind has for one owner's cut, whoever asked for it.
	cutting = 5 * time.Second
	// cutsAtOnce is how many owners are cut off beside each other of those that
	// depart together.
	cutsAtOnce = 16
)

// errImpatient says that an asker's time was up before whoever was taking the
// owner had stopped.
var errImpatient = errors.New("it has not stopped yet")

// ErrReachable says that an owner could not be cut off. Its promise stands.
var ErrReachable = errors.New("it can still be reached")

// departure is one owner's way to its cut. It has a goroutine of the engine's own,
// one however many ask: a kind that hears no context keeps that goroutine, and
// none of the askers.
type departure struct {
	ended chan struct{} // closed once err is set
	err   error         // nil: the owner is cut off
	cuts  bool          // whoever was taking the owner has stopped. Guarded by Engine.mu
	needs []hold.ID     // whom the owner needs, who may have waited for it. Guarded by Engine.mu
}

// Depart is the second half of Release: it stops whoever takes or repairs the
// owners, cuts them off, all beside each other, and sends what they hold to its
// lines. ids are of owners that are releasing; one that is gone is left out.
//
// nil says that each of them is cut off, or stands for those who need it. An error wraps ErrReachable, or says that
// somebody who takes an owner has not stopped yet. It comes at the end of ctx, or
// after Options.Mending, whatever a kind does: nobody waits for another owner longer.
// It takes nothing back of the promise: the engine goes on without the caller.
func (e *Engine) Depart(ctx context.Context, ids []hold.ID) error {
	for _, id := range ids {
		e.interrupt(id)
	}
	ctx, cancel := context.WithTimeout(ctx, e.Mending)
	defer cancel()
	if len(ids) == 1 {
		return e.follow(ctx, ids[0], e.leave(ids[0], nil))
	}
	all := make([]*departure, len(ids))
	for i, id := range ids {
		all[i] = e.leave(id, e.places)
	}
	errs := make([]error, len(ids))
	for i, d := range all {
		errs[i] = e.follow(ctx, ids[i], d)
	}
	return errors.Join(errs...)
}

// leave begins an owner's departure, or joins it. Its cut needs one of places,
// unless they are nil.
func (e *Engine) leave(id hold.ID, places chan struct{}) *departure {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.departures[id]
	if d != nil {
		return d
	}
	d = &departure{ended: make(chan struct{})}
	if e.ctx.Err() != nil { // closing: the next engine goes on
		d.err = fmt.Errorf("cutting off %s: %w: %w", id, ErrReachable, e.ctx.Err())
		close(d.ended)
		return d
	}
	e.departures[id] = d
	e.work.Go(func() { // not spawn, which may refuse by now: whoever joins waits for its end
		err := e.depart(id, d, places)
		e.mu.Lock()
		delete(e.departures, id)
		d.err = err
		close(d.ended)
		due := e.due(append(d.needs, id)) // itself, if it is not needed any more meanwhile
		e.mu.Unlock()
		for _, id := range due {
			e.leave(id, nil)
		}
	})
	return d
}

// due returns those of ids whose departure has waited for others that needed them,
// and need not wait any more. Engine.mu is held.
func (e *Engine) due(ids []hold.ID) []hold.ID {
	return slices.DeleteFunc(ids, func(id hold.ID) bool {
		return e.ctx.Err() != nil || e.departures[id] != nil || !e.mayDepart(id)
	})
}

// mayDepart reports whether an owner leaves that nobody has tried to cut off yet, and nobody
// who stands needs. Engine.mu is held.
func (e *Engine) mayDepart(id hold.ID) bool {
	l := e.leaving[id]
	return l != nil && !l.tried && !e.needed(id)
}

// isDue reports whether an owner is to depart anew.
func (e *Engine) isDue(id hold.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mayDepart(id)
}

// follow waits for a departure for as long as its asker may. One that has waited for
// others who needed the owner, and need not any more by now, is followed by another.
func (e *Engine) follow(ctx context.Context, id hold.ID, d *departure) error {
	for {
		select {
		case <-d.ended:
			if d.err != nil || !e.isDue(id) {
				return d.err
			}
			d = e.leave(id, nil)
			continue
		case <-ctx.Done():
		}
		break
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-d.ended:
		return d.err
	default:
	}
	if d.cuts {
		return fmt.Errorf("cutting off %s: %w: the cut has not ended: %w", id, ErrReachable, context.Cause(ctx))
	}
	return fmt.Errorf("waiting for the ADD of %s to stop: %w: %w", id, errImpatient, context.Cause(ctx))
}

// depart cuts a releasing owner off, once whoever was taking it has stopped,
// and sends its holds to their lines. One that others need who stand departs anew
// after them (due).
func (e *Engine) depart(id hold.ID, d *departure, places chan struct{}) error {
	_, leave, err := e.enter(e.ctx, id, false)
	if err != nil {
		return fmt.Errorf("waiting for the ADD of %s to stop: %w: %w", id, errImpatient, err)
	}
	defer leave()
	l, first := e.depose(id)
	if l == nil {
		return nil // released meanwhile
	}
	e.mu.Lock()
	awaits := !l.tried && e.needed(id)
	if o, ok := e.Ledger.Owner(id); ok && !awaits && !l.tried {
		l.owner = e.learned(o) // while it stood, its holds may have been found anew
	}
	d.cuts, d.needs = !awaits, slices.Clone(l.owner.Needs)
	cut := l.cut
	e.mu.Unlock()
	if first {
		e.event(Releasing, l.owner, "", nil)
	}
	if awaits {
		return nil
	}
	if !cut {
		err = e.cutAmong(places, l)
	}
	e.mu.Lock()
	l.tried, l.cut = true, l.cut || err == nil
	done := e.advance(l)
	e.note(l) // who needs it may have been stuck before
	e.mu.Unlock()
	if done {
		e.background(func() { e.forget([]*leaving{l}) })
	}
	return err
}

// depose puts an owner on the list of those that leave; nil: it is gone. Both are seen
// with Engine.mu, as the ledger forgets who is on the list, who leaves it only then: one
// that was forgotten in between would be released again, when what it had may be a
// successor's.
func (e *Engine) depose(id hold.ID) (l *leaving, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.leaving[id]; l != nil {
		return l, false
	}
	o, ok := e.Ledger.Owner(id)
	if !ok {
		return nil, false
	}
	l = e.newLeaving(e.learned(o))
	e.leaving[id] = l
	return l, true
}

// cutAmong cuts an owner off in one of places. A cut that takes too long gives its
// place back.
func (e *Engine) cutAmong(places chan struct{}, l *leaving) error {
	if places == nil {
		return e.cutOff(e.ctx, e.unreleased(l))
	}
	select {
	case places <- struct{}{}:
	case <-e.ctx.Done():
		return fmt.Errorf("cutting off %s: %w: %w", l.owner.ID, ErrReachable, e.ctx.Err())
	}
	overdue := time.AfterFunc(e.Mending/10, func() { <-places })
	defer func() {
		if overdue.Stop() {
			<-places
		}
	}()
	return e.cutOff(e.ctx, e.unreleased(l))
}

// cutOff makes the owner of holds unreachable. It does not stop for an asker who
// left.
func (e *Engine) cutOff(ctx context.Context, holds []hold.Hold) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutting)
	defer cancel()
	var errs []error
	for _, h := range holds {
		k, err := e.kind(h)
		if err != nil || k.Cut == nil {
			continue
		}
		if err := e.observed(k.Name(), "cut", 1, func() error { return k.Cut(ctx, h) }); err != nil {
			errs = append(errs, fmt.Errorf("cutting off %s: %w: %w", h.Spec, ErrReachable, err))
		}
	}
	return errors.Join(errs...)
}
