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
	// cutting limits the cut of one owner.
	cutting = 5 * time.Second
	// cutsAtOnce is how many cuts run at once when one Depart has several owners.
	cutsAtOnce = 16
)

// errImpatient says that the caller's time was up before the Take or the repair of the
// owner had stopped.
var errImpatient = errors.New("it has not stopped yet")

// ErrReachable says that an owner could not be cut off. The promise of the owner's release stands.
var ErrReachable = errors.New("it can still be reached")

// departure is one owner's way to its cut. One goroutine of the engine's own runs it for any number
// of callers: a kind that does not heed its context holds up that goroutine, and none of the
// callers.
type departure struct {
	ended chan struct{} // closed once err is set
	err   error         // nil: the owner is cut off
	cuts  bool          // the Take or repair of the owner has stopped, and the cut began. Guarded by Engine.mu
	needs []hold.ID     // owners that this owner needs: their departures may have waited for this one. Guarded by Engine.mu
}

// Depart is the second half of Release: it stops every Take and repair of the owners, cuts
// the owners off beside each other, and sends their holds to the release lines. ids are
// owners that are releasing; Depart leaves out those that are gone.
//
// nil says that each of the owners is cut off, or still stands for owners that need it.
// An error wraps ErrReachable, or says that the Take or the repair of an owner has not
// stopped yet. Depart returns at the latest when ctx ends or after Options.Mending,
// whatever a kind does: no caller waits longer for another owner. An error takes back
// nothing of the promise: the engine goes on without the caller.
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

// leave begins an owner's departure, or joins the one under way. The owner's cut waits for a place
// in places, unless places is nil.
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
	e.work.Go(func() { // not spawn: spawn may refuse by now, and callers wait for d.ended
		err := e.depart(id, d, places)
		e.mu.Lock()
		delete(e.departures, id)
		d.err = err
		close(d.ended)
		due := e.due(append(d.needs, id)) // id itself: the last owner that needed it may have gone meanwhile
		e.mu.Unlock()
		for _, id := range due {
			e.leave(id, nil)
		}
	})
	return d
}

// due returns the owners among ids that are to depart now: their departure had to wait for owners
// that needed them, and need not wait any more. Engine.mu is held.
func (e *Engine) due(ids []hold.ID) []hold.ID {
	return slices.DeleteFunc(ids, func(id hold.ID) bool {
		return e.ctx.Err() != nil || e.departures[id] != nil || !e.mayDepart(id)
	})
}

// mayDepart reports whether an owner is leaving, its cut has not been tried yet, and no
// owner that stands needs it. Engine.mu is held.
func (e *Engine) mayDepart(id hold.ID) bool {
	l := e.leaving[id]
	return l != nil && !l.tried && !e.needed(id)
}

// isDue is mayDepart for callers that do not hold Engine.mu.
func (e *Engine) isDue(id hold.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mayDepart(id)
}

// follow waits for a departure of id, until ctx ends. If the departure has cut nothing because
// other owners needed this one, and no standing owner needs it by now, follow begins another
// departure, and waits for this one instead.
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
	return fmt.Errorf("waiting for an ADD, a repair or a release of %s to end: %w: %w", id, errImpatient, context.Cause(ctx))
}

// depart waits until a Take or a repair of a releasing owner has stopped. Then it cuts the
// owner off, and sends the owner's holds to their lines. If a standing owner needs this owner,
// depart does neither: this owner departs anew after the owner that needs it (due).
func (e *Engine) depart(id hold.ID, d *departure, places chan struct{}) error {
	_, leave, err := e.enter(e.ctx, id, false)
	if err != nil {
		return fmt.Errorf("waiting for an ADD, a repair or a release of %s to end: %w: %w", id, errImpatient, err)
	}
	defer leave()
	l, first := e.depose(id)
	if l == nil {
		return nil // released meanwhile
	}
	e.mu.Lock()
	awaits := !l.tried && e.needed(id)
	if o, ok := e.Ledger.Owner(id); ok && !awaits && !l.tried {
		l.owner = e.learned(o) // the engine may have taken the holds again meanwhile, and they may have discovered other things
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
	if l.tried = true; err != nil {
		l.cutErr = err
	} else if !l.cut {
		l.cut, l.cutAt = true, e.now()
	}
	var last []*leaving
	if e.advance(l) {
		last = append(last, l)
	}
	last = append(last, e.letPass(l)...)
	e.note(l) // the owners that need this owner may have got stuck before
	e.mu.Unlock()
	if len(last) > 0 {
		e.background(func() { e.forget(last) })
	}
	return err
}

// depose returns an owner's entry on the list of the leaving (Engine.leaving), and adds an entry if
// there is none; first says that depose has added the entry. depose returns nil if the ledger has
// forgotten the owner. It looks at the list and at the ledger under one lock: an owner is taken off
// the list only after the ledger has forgotten the owner. Otherwise an owner that is forgotten
// between the two looks would be released once more, when a successor may already have the owner's
// things.
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

// cutAmong waits for a place in places, and cuts an owner off. If the cut takes longer than a tenth
// of Options.Mending, cutAmong gives the place back, and the cut goes on.
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

// cutOff makes the owner of holds unreachable. The end of ctx does not stop a cut, but the limit
// for a cut (cutting) does.
func (e *Engine) cutOff(ctx context.Context, holds []hold.Hold) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutting)
	defer cancel()
	var errs []error
	for _, h := range holds {
		k, err := e.kind(h)
		if err != nil || k.Cut == nil {
			continue
		}
		if err := e.act(ctx, k, "cut", h, k.Cut); err != nil {
			errs = append(errs, fmt.Errorf("cutting off %s: %w: %w", h.Spec, ErrReachable, err))
		}
	}
	return errors.Join(errs...)
}
