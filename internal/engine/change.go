package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// A change is two commits, and the engine acquires the new holds between them. The first
// commit writes down what the owner is about to gain (hold.Owner.Before). The second commit
// writes down that the owner has gained it, and takes from the owner what it loses. If the
// program dies before the second commit, the next Restore or Sweep rolls the change back.
// If the program dies after the second commit, the next engine releases what the owner lost.
//
// The commit that takes holds from an owner, in a change or in a rollback, gives these holds to
// another owner, the remnant. The remnant is releasing from its first commit on, so that the engine
// gives its holds back like those of any other owner. The remnant needs the owner that lost the
// holds (hold.Owner.Needs), so that the engine releases the remnant's holds before the Use and
// Reserve holds of that owner.

// Change changes a wanted owner: it calls change with a copy of the owner, and gives the
// owner the holds, names, needs and meta that the copy has afterwards. Two holds are the same if
// their kinds and their texts are the same. Holds that the owner already has stay as they are. The
// owner gains all new holds before it loses any. The second commit also has ops.
//
// When Change returns nil, the owner has all gained holds, they can be used, and the lost holds are
// cut off. gone is the remnant's id: Wait waits until the engine has given back the remnant's
// holds. gone is empty if the owner lost no hold.
//
// A *RefusedError says that nothing has changed. It wraps ErrOvertaken if the owner is
// being released. An error that comes with gone says that the change is made, but that
// what was lost could not be cut off yet. After any other error the owner is as before, or will be:
// the engine gives back what the owner had gained.
func (e *Engine) Change(ctx context.Context, id hold.ID, change func(*hold.Owner) error, ops ...ledger.Op) (gone hold.ID, err error) {
	ctx, leave, err := e.enter(ctx, id, false)
	if err != nil {
		return "", &RefusedError{err}
	}
	defer leave()
	defer e.begins(id)()
	d, err := e.difference(ctx, id, change)
	if err != nil {
		return "", &RefusedError{fmt.Errorf("changing %s: %w", id, err)}
	}
	if d.grows() {
		err := e.Ledger.Commit(ctx, ledger.Update(id, d.announce))
		if o, _ := e.Ledger.Owner(id); err != nil && o.Before == nil {
			return "", &RefusedError{err}
		}
		e.written(id)
		if err == nil {
			_, err = e.acquireAll(ctx, d.whole(), len(d.before.Holds))
		}
		if err != nil {
			return "", errors.Join(err, e.rollBack(ctx, id))
		}
	}
	d.keep()
	gone, parted := part(d.before, d.lost, e.now())
	err = e.Ledger.Commit(ctx, slices.Concat([]ledger.Op{ledger.Update(id, d.conclude)}, parted, ops)...)
	if err != nil && !e.concluded(d) {
		if !d.grows() {
			return "", &RefusedError{err}
		}
		return "", errors.Join(err, e.rollBack(ctx, id))
	}
	e.written(id)
	e.unneeded(d.lost.needs)
	if gone == "" {
		return "", nil
	}
	return gone, e.Depart(ctx, []hold.ID{gone})
}

// begins notes that an owner is being changed, until the caller calls ends.
func (e *Engine) begins(id hold.ID) (ends func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changing[id] = true
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.changing, id)
	}
}

// belongings are the needs, names and holds that an owner gains or loses.
type belongings struct {
	needs []hold.ID
	names []hold.Name
	holds []hold.Hold
}

// changed is the difference that a change makes to an owner.
type changed struct {
	before       hold.Owner
	gained, lost belongings
	meta         []byte
}

// difference works out what an owner gains and loses by a change. First, difference rolls back an
// earlier change that has not ended, and writes down what earlier commits could not write
// (catchUp). Last, difference waits until no remnant has what the owner gains (vacated). The caller
// has the owner's turn.
func (e *Engine) difference(ctx context.Context, id hold.ID, change func(*hold.Owner) error) (*changed, error) {
	if err := e.rollBack(ctx, id); err != nil {
		return nil, err
	}
	if err := e.catchUp(ctx, id); err != nil {
		return nil, err
	}
	o, ok := e.Ledger.Owner(id)
	if !ok || !o.Wanted() {
		return nil, ErrOvertaken
	}
	switch going, err := e.going(o); {
	case going:
		return nil, ErrOvertaken
	case err != nil:
		return nil, err
	}
	after := o.Clone()
	if err := change(&after); err != nil {
		return nil, err
	}
	d := &changed{before: o, meta: after.Meta}
	d.gained.needs, d.lost.needs = differ(o.Needs, after.Needs)
	d.gained.names, d.lost.names = differ(o.Names, after.Names)
	for i, h := range after.Holds {
		if h.Spec == nil || has(after.Holds[:i], h.Spec) {
			return nil, fmt.Errorf("%w: hold %d has no spec, or appears twice", ledger.ErrInvalid, i)
		}
		if !has(o.Holds, h.Spec) {
			d.gained.holds = append(d.gained.holds, hold.Hold{Owner: id, Spec: h.Spec})
		}
	}
	for _, h := range o.Holds {
		if !has(after.Holds, h.Spec) {
			d.lost.holds = append(d.lost.holds, h)
		}
	}
	for _, n := range discovered(d.lost.holds) { // a discovered name goes with its hold
		if slices.Contains(o.Names, n) && !slices.Contains(d.lost.names, n) {
			d.lost.names = append(d.lost.names, n)
		}
	}
	if err := e.takeable(hold.Owner{ID: id, Holds: d.gained.holds}); err != nil {
		return nil, err
	}
	return d, e.vacated(ctx, d)
}

// differ returns the elements of after that are not in before, and the elements of before that are
// not in after.
func differ[T comparable](before, after []T) (gained, lost []T) {
	without := func(all, but []T) []T {
		return slices.DeleteFunc(slices.Clone(all), func(x T) bool { return slices.Contains(but, x) })
	}
	return without(after, before), without(before, after)
}

// vacated waits until no remnant has a thing that the owner gains. If the owner has lost the thing
// earlier and gains it again, the remnant's release would take the thing from the owner. Once the
// thing is given back, vacated takes it out of the remnant's record (strike).
func (e *Engine) vacated(ctx context.Context, d *changed) error {
	for _, id := range e.Ledger.Needers(d.before.ID) {
		o, ok := e.Ledger.Owner(id)
		if !ok || o.Wanted() {
			continue
		}
		for _, h := range d.gained.holds {
			if !has(o.Holds, h.Spec) {
				continue
			}
			err := e.WaitKind(ctx, h.Spec.Kind(), id)
			if err == nil && len(o.Names) > 0 { // the new hold may discover the remnant's names again
				err = e.Wait(ctx, id)
			}
			if err == nil {
				err = e.strike(ctx, id, func(own hold.Hold) bool { return has([]hold.Hold{own}, h.Spec) })
			}
			if err != nil {
				return fmt.Errorf("waiting until the former %s is released: %w", h.Spec, err)
			}
		}
	}
	return nil
}

// grows reports whether the owner gains anything.
func (d *changed) grows() bool {
	return len(d.gained.needs)+len(d.gained.names)+len(d.gained.holds) > 0
}

// whole returns the owner with all that it had and all that it gains.
func (d *changed) whole() hold.Owner {
	o := d.before.Clone()
	o.Needs = append(o.Needs, d.gained.needs...)
	o.Names = append(o.Names, d.gained.names...)
	o.Holds = append(o.Holds, d.gained.holds...)
	return o
}

// announce writes into the owner's record what the owner is about to gain: the first commit.
func (d *changed) announce(o *hold.Owner) error {
	o.Before = &hold.Extent{Needs: len(o.Needs), Names: len(o.Names), Holds: len(o.Holds)}
	whole := d.whole()
	o.Needs, o.Names, o.Holds = whole.Needs, whole.Names, whole.Holds
	return nil
}

// keep removes a name from the lost names if a hold that the owner keeps or gains says the name
// (hold.Namer): a gained hold may have discovered it.
func (d *changed) keep() {
	kept := slices.DeleteFunc(d.whole().Holds, func(h hold.Hold) bool { return has(d.lost.holds, h.Spec) })
	d.lost.names = unsaid(d.lost.names, kept...)
}

// unsaid returns those of names that no hold among holds says (hold.Namer).
func unsaid(names []hold.Name, holds ...hold.Hold) []hold.Name {
	left, _ := differ(discovered(holds), names)
	return left
}

// conclude is the second commit: it writes into the owner's record that the owner has what it
// gained, and takes out what the owner lost.
func (d *changed) conclude(o *hold.Owner) error {
	o.Before, o.Meta = nil, d.meta
	o.Needs, _ = differ(d.lost.needs, o.Needs)
	if len(d.lost.holds) == 0 { // otherwise the names pass to the remnant
		o.Names, _ = differ(d.lost.names, o.Names)
	}
	o.Holds = slices.DeleteFunc(o.Holds, func(h hold.Hold) bool { return has(d.lost.holds, h.Spec) })
	return nil
}

// concluded reports whether a change is made although its second commit has returned an
// error: a commit that was withdrawn may have been written all the same.
func (e *Engine) concluded(d *changed) bool {
	o, ok := e.Ledger.Owner(d.before.ID)
	if !ok || o.Before != nil || !bytes.Equal(o.Meta, d.meta) || d.isNothing() {
		return false
	}
	_, needs := differ(d.lost.needs, o.Needs)
	_, names := differ(d.lost.names, o.Names)
	return len(needs) == len(d.lost.needs) && len(names) == len(d.lost.names) &&
		!slices.ContainsFunc(d.lost.holds, func(h hold.Hold) bool { return has(o.Holds, h.Spec) })
}

// isNothing reports whether a change leaves the owner as it is. Then the owner's record does
// not show whether the commit, which has only ops, was written.
func (d *changed) isNothing() bool {
	lost := len(d.lost.needs) + len(d.lost.names) + len(d.lost.holds)
	return !d.grows() && lost == 0 && bytes.Equal(d.before.Meta, d.meta)
}

// part returns the ops that make a remnant of what an owner loses, and the remnant's id,
// gone. The lost names pass to the remnant, so that they begin to rest only after the lost
// holds are given back. Without a lost hold there is no remnant, and no ops.
func part(o hold.Owner, lost belongings, at time.Time) (gone hold.ID, ops []ledger.Op) {
	if len(lost.holds) == 0 {
		return "", nil
	}
	remnant := hold.Owner{ID: hold.NewID(), Needs: append([]hold.ID{o.ID}, lost.needs...), Ordered: o.Ordered, Releasing: at}
	for _, h := range lost.holds {
		h.From = cmp.Or(h.From, o.ID)
		remnant.Holds = append(remnant.Holds, h)
	}
	ops = append(ops, ledger.Begin(remnant))
	if len(lost.names) > 0 {
		ops = append(ops, ledger.Pass(o.ID, remnant.ID, lost.names...))
	}
	return remnant.ID, ops
}

// rollBack takes from an owner what it was about to gain by a change that has not ended.
// The caller has the owner's turn.
func (e *Engine) rollBack(ctx context.Context, id hold.ID) error {
	o, ok := e.Ledger.Owner(id)
	if !ok || !o.Wanted() || o.Before == nil {
		return nil // the release of a releasing owner also gives back what the owner was about to gain
	}
	o = e.withLearned(o)
	b := *o.Before
	// A hold that the owner keeps may have been taken again, and may have discovered another name.
	lost := belongings{o.Needs[b.Needs:], unsaid(o.Names[b.Names:], o.Settled()...), o.Holds[b.Holds:]}
	gone, ops := part(o, lost, e.now())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	err := e.Ledger.Commit(ctx, append([]ledger.Op{ledger.Update(id, func(now *hold.Owner) error {
		now.Needs, now.Holds, now.Before = now.Needs[:b.Needs], now.Holds[:b.Holds], nil
		if gone == "" {
			now.Names, _ = differ(lost.names, now.Names)
		}
		return nil
	})}, ops...)...)
	if now, _ := e.Ledger.Owner(id); err != nil && now.Before != nil {
		return fmt.Errorf("rolling back the change of %s: %w", id, err)
	}
	e.mu.Lock()
	if u, ok := e.unwritten[id]; ok { // keep what the remaining holds have discovered: the next sweep writes it
		u.Holds = u.Holds[:b.Holds]
		e.unwritten[id] = u
	}
	e.mu.Unlock()
	e.unneeded(lost.needs)
	if gone == "" {
		return nil
	}
	return e.Depart(ctx, []hold.ID{gone})
}

// rollBackAll rolls back the changes of owners that no Change goes on with: the program ended
// before the second commit, or an earlier rollback could not be written.
func (e *Engine) rollBackAll(ctx context.Context, owners []hold.Owner) error {
	var errs []error
	for _, o := range owners {
		if o.Before == nil || !o.Wanted() || e.isChanging(o.ID) {
			continue
		}
		errs = append(errs, e.settleUp(ctx, o.ID, "rolling back the change", e.rollBack))
	}
	return errors.Join(errs...)
}

// settleUp takes an owner's turn and calls do, which writes what could not be written
// earlier, all within Options.Mending.
func (e *Engine) settleUp(ctx context.Context, id hold.ID, what string, do func(context.Context, hold.ID) error) error {
	ctx, cancel := context.WithTimeout(ctx, e.Mending)
	defer cancel()
	ctx, leave, err := e.enter(ctx, id, false)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", what, id, err)
	}
	defer leave()
	return do(ctx, id)
}

// isChanging reports whether an owner is being changed right now.
func (e *Engine) isChanging(id hold.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changing[id]
}
