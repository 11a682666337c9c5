package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

func (b *batch) begin(e *entry) error {
	o := &e.owner
	if _, ok := b.owners.get(o.ID); ok {
		return ErrExists
	}
	if err := b.mayNeed(o.Needs, !o.Wanted()); err != nil {
		return err
	}
	for _, n := range o.Names {
		if err := b.claim(n, o.ID); err != nil {
			return err
		}
	}
	if err := b.take(e.size); err != nil {
		return err
	}
	b.join(o.Needs, o.ID)
	b.edit(nil, e)
	return nil
}

// mayNeed returns ErrNeeds if one of ids is unknown, or is releasing. An owner that is
// releasing itself (leaving) may need owners that are releasing.
func (b *batch) mayNeed(ids []hold.ID, leaving bool) error {
	for _, id := range ids {
		e, ok := b.owners.get(id)
		if !ok {
			return fmt.Errorf("%w: %s is unknown", ErrNeeds, id)
		}
		if !e.owner.Wanted() && !leaving {
			return fmt.Errorf("%w: %s is releasing", ErrNeeds, id)
		}
	}
	return nil
}

// needed reports whether one of ids is id, or needs it.
func (b *batch) needed(id hold.ID, ids []hold.ID) bool {
	return slices.ContainsFunc(ids, func(other hold.ID) bool {
		e, ok := b.owners.get(other)
		return other == id || ok && b.needed(id, e.owner.Needs)
	})
}

func (b *batch) update(id hold.ID, change func(*hold.Owner) error) error {
	before, ok := b.owners.get(id)
	if !ok {
		return ErrUnknown
	}
	o, err := b.ledger.own(before.owner)
	if err != nil {
		return err
	}
	if err := change(&o); err != nil {
		return err
	}
	if o.ID != id {
		return fmt.Errorf("%w: the ID cannot be changed", ErrInvalid)
	}
	o.Releasing = before.owner.Releasing
	after, err := b.ledger.seal(o)
	if err != nil {
		return err
	}
	if err := b.need(before.owner, after.owner); err != nil {
		return err
	}
	for _, n := range before.owner.Names {
		if !slices.Contains(after.owner.Names, n) {
			b.free(n, b.now)
		}
	}
	for _, n := range after.owner.Names {
		if slices.Contains(before.owner.Names, n) {
			continue
		}
		if err := b.claim(n, id); err != nil {
			return err
		}
	}
	if after.size > before.size {
		if err := b.take(after.size); err != nil {
			return err
		}
	}
	b.edit(before, after)
	return nil
}

func (b *batch) pass(from, to hold.ID, names []hold.Name) error {
	if from == to {
		return fmt.Errorf("%w: to itself", ErrInvalid)
	}
	for _, id := range []hold.ID{from, to} {
		before, ok := b.owners.get(id)
		if !ok {
			return fmt.Errorf("%w: %s", ErrUnknown, id)
		}
		o := before.owner.Clone()
		for _, n := range names {
			i := slices.Index(o.Names, n)
			switch {
			case id == from && i < 0:
				return fmt.Errorf("%w: %s does not have %s", ErrInvalid, from, n)
			case id == from:
				o.Names = slices.Delete(o.Names, i, i+1)
			default:
				o.Names = append(o.Names, n)
				b.names.put(n, to)
			}
		}
		after, err := b.ledger.seal(o)
		if err != nil {
			return err
		}
		if after.size > before.size {
			if err := b.take(after.size); err != nil {
				return err
			}
		}
		b.edit(before, after)
	}
	return nil
}

func (b *batch) releasing(id hold.ID, at time.Time) error {
	before, ok := b.owners.get(id)
	if !ok {
		return ErrUnknown
	}
	if !before.owner.Wanted() {
		return nil
	}
	after := *before
	after.owner.Releasing = at
	b.edit(before, &after)
	return nil
}

func (b *batch) forget(id hold.ID, at time.Time) error {
	before, ok := b.owners.get(id)
	if !ok {
		return nil
	}
	if needers, ok := b.needers.get(id); ok {
		return fmt.Errorf("%w: %d", ErrNeeded, len(needers))
	}
	for _, n := range before.owner.Names {
		b.free(n, at)
	}
	b.leave(before.owner.Needs, id)
	b.edit(before, nil)
	return nil
}

func (b *batch) bury(t Tombstone) {
	if old, ok := b.tombs.get(t.Key); ok && old.Boot == t.Boot {
		t.Started = max(t.Started, old.Started)
		t.Until = max(t.Until, old.Until)
		if t == old {
			return
		}
	}
	b.tombs.put(t.Key, t)
}

// unburied returns ErrBuried if a request began no later than the key's tombstone. An
// expired tombstone counts, too, as long as it is not pruned.
func (b *batch) unburied(key, boot string, started int64) error {
	if t, ok := b.tombs.get(key); ok && t.Boot == boot && started <= t.Started {
		return ErrBuried
	}
	return nil
}

// claim gives a name to an owner, unless an owner has it or it still rests.
func (b *batch) claim(n hold.Name, id hold.ID) error {
	if holder, ok := b.names.get(n); ok {
		return &NameTakenError{Name: n, Owner: holder}
	}
	if r, ok := b.rests.get(n); ok {
		if b.now.Before(r.Until) {
			return &NameTakenError{Name: n, Until: r.Until.Add(b.spans.stepped)}
		}
		b.rests.drop(n)
	}
	b.names.put(n, id)
	return nil
}

// free takes a name from its owner. The name then rests from at on, if Options.Rest says so.
func (b *batch) free(n hold.Name, at time.Time) {
	b.names.drop(n)
	if d := b.ledger.opts.Rest(n); d > 0 {
		b.rests.put(n, Rest{n, at, at.Add(d)})
	}
}

// take reserves room in the file for a record of so many bytes, or returns ErrFull.
func (b *batch) take(size int) error {
	if b.full != nil { // do not try to grow the file again for each record
		return b.full
	}
	need := b.pages + pagesFor(size)
	if b.full = b.ledger.store.ensure(len(b.ledger.state.owners), need); b.full == nil {
		b.pages = need
	}
	return b.full
}

// need updates the lists of needers after an update has changed an owner's Needs. It returns
// an error if the owner may not need one of the new ones.
func (b *batch) need(before, after hold.Owner) error {
	if slices.Equal(before.Needs, after.Needs) {
		return nil
	}
	is := func(ids []hold.ID) func(hold.ID) bool {
		return func(id hold.ID) bool { return slices.Contains(ids, id) }
	}
	added := slices.DeleteFunc(slices.Clone(after.Needs), is(before.Needs))
	if err := b.mayNeed(added, !after.Wanted()); err != nil {
		return err
	}
	if b.needed(after.ID, added) {
		return fmt.Errorf("%w: what it needs, needs it", ErrInvalid)
	}
	b.leave(slices.DeleteFunc(slices.Clone(before.Needs), is(after.Needs)), after.ID)
	b.join(added, after.ID)
	return nil
}

// join adds an owner, who, to the lists of needers of the owners that it needs; leave
// removes it. They do not change lists in place, because the ledger's state, which readers
// see and a refused commit goes back to, may share them.
func (b *batch) join(needed []hold.ID, who hold.ID) {
	for _, id := range needed {
		needers, _ := b.needers.get(id)
		b.needers.put(id, append(slices.Clip(needers), who))
	}
}

func (b *batch) leave(needed []hold.ID, who hold.ID) {
	for _, id := range needed {
		needers, _ := b.needers.get(id)
		if len(needers) == 1 {
			b.needers.drop(id)
			continue
		}
		b.needers.put(id, slices.DeleteFunc(slices.Clone(needers), func(n hold.ID) bool { return n == who }))
	}
}
