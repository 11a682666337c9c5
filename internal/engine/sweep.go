package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/hold"
)

// Difference returns the finding for a hold for which Verify has returned err.
func Difference(h hold.Hold, err error) Finding {
	f := Finding{Unreadable, h, h.Spec.Kind(), err}
	switch {
	case errors.Is(err, hold.ErrGone):
		f.Type = Gone
	case errors.Is(err, hold.ErrChanged):
		f.Type = Changed
	}
	return f
}

// Report is what an audit or a sweep has seen.
type Report struct {
	Owners, Holds int
	Findings      []Finding
}

// Audit compares the ledger with the world, and changes nothing. Owners that are being
// taken or released are no findings, except for what they owe.
func (e *Engine) Audit(ctx context.Context) Report {
	report, _, _ := e.look(ctx, new(hold.Look))
	return report
}

// Sweep is an audit that mends. It takes again what drifted. It rolls back changes that
// nobody goes on with, and writes down what could not be written. It begins the departure
// of owners that the ledger says are releasing and that the engine has not begun to
// release. It removes things that have our stamp and no owner, once two sweeps in a row
// have seen them. A kind that hears of changes need not read all of the world anew in each
// sweep (hold.Glance).
func (e *Engine) Sweep(ctx context.Context) (Report, error) {
	report, drifts, orphans := e.look(ctx, hold.Glance())
	err := e.rollBackAll(ctx, e.Ledger.Owners()) // first, or Mend could write what a dead change was to gain
	err = errors.Join(err, e.Mend(ctx, drifts), e.Depart(ctx, e.undeparted()), e.relearnAll(ctx))

	e.mu.Lock()
	seen := e.suspect
	e.suspect = map[string]bool{}
	for _, h := range orphans {
		e.suspect[h.Spec.String()] = true
	}
	e.mu.Unlock()
	for _, h := range orphans {
		if seen[h.Spec.String()] {
			err = errors.Join(err, e.removeOrphan(ctx, h))
		}
	}
	return report, err
}

// undeparted returns the owners that the ledger says are releasing and that the engine has
// not begun to release.
func (e *Engine) undeparted() []hold.ID {
	var ids []hold.ID
	for _, o := range e.Ledger.Owners() {
		e.mu.Lock()
		if !o.Wanted() && e.leaving[o.ID] == nil {
			ids = append(ids, o.ID)
		}
		e.mu.Unlock()
	}
	return ids
}

// removeOrphan releases a thing that has our stamp and no owner, unless an owner has taken
// it since the look.
func (e *Engine) removeOrphan(ctx context.Context, h hold.Hold) error {
	k, err := e.kind(h)
	if err != nil {
		return err
	}
	if len(unowned([]hold.Hold{h}, e.Ledger.Owners())) == 0 {
		return nil
	}
	orphan := fmt.Errorf("removing %s: it has no owner", h.Spec)
	e.event(Drifted, hold.Owner{ID: h.Owner}, k.Name(), orphan)
	err, tried := e.lines[k.Name()].stranger(ctx, h)
	if err != nil {
		return fmt.Errorf("removing the orphan %s: %w", h.Spec, err)
	}
	if !tried {
		return nil // the next sweep tries it
	}
	e.event(Mended, hold.Owner{ID: h.Owner}, k.Name(), orphan)
	var heirs []hold.ID // owners whose Acquire found the thing there just before it was released
	for _, o := range e.Ledger.Owners() {
		if e.stands(o) && has(o.Settled(), h.Spec) {
			heirs = append(heirs, o.ID)
		}
	}
	return e.Repair(ctx, heirs...)
}

// look finds what is left over, missing, changed or owed; all kinds look at once. It reads
// the world before the ledger, so that the ledger knows the owners of all things that were
// seen, except those that were released in between. Therefore look reads the world again
// if it has seen a thing without an owner: a thing that was released is gone by then.
func (e *Engine) look(ctx context.Context, look *hold.Look) (Report, Missing, []hold.Hold) {
	var r Report
	found, unreadable := e.find(ctx, look)
	r.Findings = unreadable
	owners := e.Ledger.Owners()
	orphans := unowned(found, owners)
	if len(orphans) > 0 {
		again, _ := e.find(ctx, nil)
		orphans = both(orphans, unowned(again, e.Ledger.Owners()))
	}
	for _, h := range orphans {
		r.Findings = append(r.Findings, Finding{Type: LeftOver, Hold: h, Kind: h.Spec.Kind()})
	}

	var settled []hold.Owner
	for _, o := range owners {
		r.Owners++
		r.Holds += len(o.Holds)
		for _, h := range o.Holds {
			if _, err := e.kind(h); err != nil && o.Wanted() { // if the owner is leaving, Owed has this hold
				r.Findings = append(r.Findings, Finding{Unreadable, h, h.Spec.Kind(), err})
			}
		}
		if e.stands(o) && !e.Taking(o.ID) && !e.Doomed(o.ID) {
			settled = append(settled, o)
		}
	}
	drifts := e.unended(e.standing(e.verify(ctx, look, settled)))
	for _, d := range drifts {
		r.Findings = append(r.Findings, Difference(d.hold, d.err))
	}
	for _, o := range e.Owed("") {
		kind := "ledger"
		if o.Hold.Spec != nil {
			kind = o.Hold.Spec.Kind()
		}
		r.Findings = append(r.Findings, Finding{Due, o.Hold, kind, o.Err})
	}
	return r, drifts, orphans
}

// find asks all kinds at once for the things that have our stamp.
func (e *Engine) find(ctx context.Context, look *hold.Look) (found []hold.Hold, unreadable []Finding) {
	all, errs := make([][]hold.Hold, len(e.Kinds)), make([]error, len(e.Kinds))
	var looks sync.WaitGroup
	for i, k := range e.Kinds {
		if k.Find == nil {
			continue
		}
		looks.Go(func() {
			all[i], errs[i] = aside(ctx, e, k, "find", 0, func(ctx context.Context) ([]hold.Hold, error) { return k.Find(ctx, look) })
		})
	}
	looks.Wait()
	for i, err := range errs {
		if err != nil {
			unreadable = append(unreadable, Finding{Type: Unreadable, Kind: e.Kinds[i].Name(), Err: err})
		}
	}
	return slices.Concat(all...), unreadable
}

// standing returns the drifts of owners that still stand.
func (e *Engine) standing(drifts Missing) Missing {
	var still Missing
	for _, d := range drifts {
		if o, ok := e.Ledger.Owner(d.owner.ID); ok && e.stands(o) {
			still = append(still, d)
		}
	}
	return still
}

// unowned returns the found things that are in no owner's list of holds.
func unowned(found []hold.Hold, owners []hold.Owner) []hold.Hold {
	byID := make(map[hold.ID]int, len(owners))
	for i, o := range owners {
		byID[o.ID] = i
	}
	nameless := map[string]bool{} // kinds of things that the owner in h.Owner, if any, does not have
	var left []hold.Hold
	for _, h := range found {
		if i, ok := byID[h.Owner]; ok && has(owners[i].Holds, h.Spec) {
			continue
		}
		nameless[h.Spec.Kind()] = true
		left = append(left, h)
	}
	if len(left) == 0 {
		return nil
	}
	owned := map[string]bool{}
	for _, o := range owners {
		for _, h := range o.Holds {
			if nameless[h.Spec.Kind()] {
				owned[h.Spec.String()] = true
			}
		}
	}
	return slices.DeleteFunc(left, func(h hold.Hold) bool { return owned[h.Spec.String()] })
}

// has reports whether one of holds is the thing that s names.
func has(holds []hold.Hold, s hold.Spec) bool {
	return slices.ContainsFunc(holds, func(h hold.Hold) bool {
		return h.Spec.Kind() == s.Kind() && h.Spec.String() == s.String()
	})
}

// both returns the things of a that are in b as well.
func both(a, b []hold.Hold) []hold.Hold {
	in := map[string]bool{}
	for _, h := range b {
		in[h.Spec.String()] = true
	}
	var both []hold.Hold
	for _, h := range a {
		if in[h.Spec.String()] {
			both = append(both, h)
		}
	}
	return both
}
