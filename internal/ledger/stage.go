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
	b.is(adding)
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

// needed reports whether one of ids is id, or needs the owner id, directly or through other owners.
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
	o.Releasing, o.Earlier = before.owner.Releasing, before.owner.Earlier
	after, err := b.ledger.seal(o)
	if err != nil {
		return err
	}
	if err := b.need(before.owner, after.owner); err != nil {
		return err
	}
	lent := before.owner.Lent()
	for _, n := range before.owner.Names {
		if !slices.Contains(after.owner.Names, n) {
			b.free(n, b.now, slices.Contains(lent, n))
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
	b.is(growth(before, after))
	b.edit(before, after)
	return nil
}

// growth returns the class of a commit that changes an owner.
func growth(before, after *entry) class {
	if after.size > before.size || exit(&after.owner) > exit(&before.owner) {
		return adding
	}
	return changing
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
		b.is(growth(before, after))
		b.edit(before, after)
	}
	return nil
}

func (b *batch) releasing(id hold.ID, rec releasingRecord) error {
	before, ok := b.owners.get(id)
	if !ok {
		return ErrUnknown
	}
	if !before.owner.Wanted() {
		return nil
	}
	after := *before
	rec.mark(&after.owner)
	b.is(burying)
	b.edit(before, &after)
	return nil
}

func (b *batch) forget(id hold.ID, at time.Time, unused bool) error {
	before, ok := b.owners.get(id)
	if !ok {
		return nil
	}
	if n, _ := b.needers.get(id); n > 0 {
		return fmt.Errorf("%w: %d", ErrNeeded, n)
	}
	lent := before.owner.Lent()
	for _, n := range before.owner.Names {
		b.free(n, at, unused || slices.Contains(lent, n))
	}
	b.leave(before.owner.Needs, id)
	b.is(burying)
	b.edit(before, nil)
	return nil
}

func (b *batch) bury(stone Tombstone) {
	t := tomb{stone.Boot, stone.Started, stone.Until}
	if old, ok := b.tombs.get(stone.Key); ok && old.boot == t.boot {
		t.started = max(t.started, old.started)
		t.until = max(t.until, old.until)
		if t == old {
			return
		}
	}
	b.is(burying)
	b.tombs.put(stone.Key, t)
	b.bytes += putBytes(len(stone.Key), tombBytes(t))
}

// unburied returns ErrBuried if a request began no later than the key's tombstone. An
// expired tombstone counts, too, as long as it is not pruned.
func (b *batch) unburied(key, boot string, started int64) error {
	if t, ok := b.tombs.get(key); ok && t.boot == boot && started <= t.started {
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
		if until := r.rest(n).Until; b.now.Before(until) {
			return &NameTakenError{Name: n, Until: until.Add(b.spans.stepped)}
		}
		b.wake(n)
	}
	b.names.put(n, id)
	return nil
}

// free takes a name from its owner. Unless the name need not rest, it then rests from the time `at` on, if Options.Rest
// gives it a rest.
func (b *batch) free(n hold.Name, at time.Time, restless bool) {
	b.names.drop(n)
	if restless {
		return
	}
	if d := b.ledger.opts.Rest(n); d > 0 {
		b.rest(n, rested{at.UnixNano(), b.spans.of(at, at.Add(d))})
	}
}

// room makes sure of as much room as another owner would need, and takes none.
func (b *batch) room() error {
	bytes, exits := b.bytes, b.exits
	b.is(adding)
	b.bytes += bytesFor(usualOwner)
	b.exits += usualExit
	err := b.fit(bytes, exits)
	b.bytes, b.exits = bytes, exits
	return err
}

// begins lets set change what an agent writes into the head when it starts.
func (b *batch) begins(set func(*batch)) error {
	set(b)
	b.bytes += b.headBytes()
	return nil
}

// need updates the edges after an update has changed an owner's Needs. It returns
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
		return fmt.Errorf("%w: an owner that it needs also needs it", ErrInvalid)
	}
	b.leave(slices.DeleteFunc(slices.Clone(before.Needs), is(after.Needs)), after.ID)
	b.join(added, after.ID)
	return nil
}
