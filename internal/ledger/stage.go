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
	if o.Parent != "" {
		parent, ok := b.owners.get(o.Parent)
		if !ok {
			return fmt.Errorf("%w: %s is unknown", ErrParent, o.Parent)
		}
		if !parent.owner.Wanted() {
			return fmt.Errorf("%w: %s is releasing", ErrParent, o.Parent)
		}
	}
	for _, n := range o.Names {
		if err := b.claim(n, o.ID); err != nil {
			return err
		}
	}
	if err := b.take(e.size); err != nil {
		return err
	}
	b.join(o.Parent, o.ID)
	b.edit(nil, e)
	return nil
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
	if o.ID != id || o.Parent != before.owner.Parent {
		return fmt.Errorf("%w: ID and parent cannot be changed", ErrInvalid)
	}
	o.Releasing = before.owner.Releasing
	after, err := b.ledger.seal(o)
	if err != nil {
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
	if children, ok := b.children.get(id); ok {
		return fmt.Errorf("%w: %d", ErrChildren, len(children))
	}
	for _, n := range before.owner.Names {
		b.free(n, at)
	}
	b.leave(before.owner.Parent, id)
	b.edit(before, nil)
	return nil
}

func (b *batch) bury(t Tombstone) {
	if old, ok := b.tombs.get(t.Key); ok && old.Boot == t.Boot {
		if old.Started > t.Started {
			t.Started = old.Started
		}
		t.Until = max(t.Until, old.Until)
		if t == old {
			return
		}
	}
	b.tombs.put(t.Key, t)
}

// unburied refuses what began no later than the key's tombstone. An expired one
// refuses too, for as long as it is there.
func (b *batch) unburied(key, boot string, started int64) error {
	if t, ok := b.tombs.get(key); ok && t.Boot == boot && started <= t.Started {
		return ErrBuried
	}
	return nil
}

// claim gives a name to an owner, unless it is another's or still rests.
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

// free takes a name from its owner, into a rest from at on if it needs one.
func (b *batch) free(n hold.Name, at time.Time) {
	b.names.drop(n)
	if d := b.ledger.opts.Rest(n); d > 0 {
		b.rests.put(n, Rest{n, at, at.Add(d)})
	}
}

// take uses room for a record of so many bytes, or says that the disk is full.
func (b *batch) take(size int) error {
	if b.full != nil { // the file is not tried to be grown for each
		return b.full
	}
	need := b.pages + pagesFor(size)
	if b.full = b.ledger.store.ensure(len(b.ledger.state.owners), need); b.full == nil {
		b.pages = need
	}
	return b.full
}

// join and leave keep the list of an owner's children. Lists are not changed
// in place: readers and refused callers may have them.
func (b *batch) join(parent, child hold.ID) {
	if parent == "" {
		return
	}
	children, _ := b.children.get(parent)
	b.children.put(parent, append(slices.Clip(children), child))
}

func (b *batch) leave(parent, child hold.ID) {
	if parent == "" {
		return
	}
	children, _ := b.children.get(parent)
	if len(children) == 1 {
		b.children.drop(parent)
		return
	}
	b.children.put(parent, slices.DeleteFunc(slices.Clone(children), func(id hold.ID) bool { return id == child }))
}
