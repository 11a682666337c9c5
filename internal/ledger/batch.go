package ledger

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// batch is a transaction that is being put together: the commits of several callers, staged
// over the ledger's state. A commit that is refused leaves no trace in it.
type batch struct {
	ledger *Ledger
	now    time.Time
	spans  spans

	owners  layer[hold.ID, *entry]
	names   layer[hold.Name, hold.ID]
	edges   layer[edge, struct{}]
	needers layer[hold.ID, int] // how many
	rests   layer[hold.Name, rested]
	tombs   layer[string, tomb]
	epoch   Epoch
	first   *First
	edits   []Edit

	quarantine kept

	bytes int   // of its payload, at most
	exits int   // sectors that it adds to the owners' exits
	class class // of the commit that is being staged
	full  error // why the file could not grow by as many sectors of zeros as lacks says; nil: no try has failed
	lacks int
}

func (l *Ledger) newBatch() *batch {
	s := &l.state
	b := &batch{
		ledger:  l,
		now:     l.now,
		spans:   spansOf(l.opts),
		owners:  newLayer(table[hold.ID, *entry](s.owners)),
		names:   newLayer(table[hold.Name, hold.ID](s.names)),
		edges:   newLayer(s.edges),
		needers: newLayer(counts{s.edges}),
		rests:   newLayer(restsByName{s.rests}),
		tombs:   newLayer(s.tombs),
		epoch:   s.epoch,
		first:   s.first,

		quarantine: s.quarantine,
	}
	if l.store.stale { // the first batch writes the head
		b.bytes = b.headBytes()
	}
	return b
}

// headBytes returns how many bytes of a payload the head takes at most.
func (b *batch) headBytes() int {
	head, err := b.ledger.store.headOf(b.epoch, b.first, b.quarantine)
	if err != nil { // then the batch cannot be written, either
		return 0
	}
	return putBytes(len(headKey), len(head))
}

// stage runs the steps of one commit, all or none.
func (b *batch) stage(steps []step) error {
	owners, names, edges, needers := b.owners.mark(), b.names.mark(), b.edges.mark(), b.needers.mark()
	rests, tombs := b.rests.mark(), b.tombs.mark()
	epoch, first, quarantine, edits := b.epoch, b.first, b.quarantine, len(b.edits)
	bytes, exits := b.bytes, b.exits
	b.class = starting
	err := b.run(steps)
	if err == nil {
		err = b.fit(bytes, exits)
	}
	if err != nil {
		b.owners.back(owners)
		b.names.back(names)
		b.edges.back(edges)
		b.needers.back(needers)
		b.rests.back(rests)
		b.tombs.back(tombs)
		b.epoch, b.first, b.quarantine, b.edits = epoch, first, quarantine, b.edits[:edits]
		b.bytes, b.exits = bytes, exits
	}
	return err
}

func (b *batch) run(steps []step) error {
	for _, s := range steps {
		if err := s.do(b); err != nil {
			return err
		}
	}
	return nil
}

// is says that the commit that is being staged is of a class, at least.
func (b *batch) is(c class) { b.class = max(b.class, c) }

// fit makes sure that the file has room for the commit that was staged last, or returns ErrFull.
// bytes and exits are the batch's before that commit. A commit that takes no more sectors than it
// takes from the owners' exits (space.go) has its room already: it is a deletion.
func (b *batch) fit(bytes, exits int) error {
	if sectors(b.bytes)-sectors(bytes) <= exits-b.exits {
		return nil
	}
	s := b.ledger.store
	need := sectors(b.bytes) + s.exits + b.exits + b.class.leaves()
	if s.short(need) <= 0 {
		return nil
	}
	if b.full == nil || need < b.lacks { // otherwise do not try to grow the file again for each commit
		err := s.ensure(need)
		if err == nil {
			return nil
		}
		b.full, b.lacks = err, need
	}
	return fmt.Errorf("making room for a commit: %w", b.full)
}

// empty reports whether the batch changes nothing.
func (b *batch) empty() bool {
	s := &b.ledger.state
	return len(b.edits) == 0 && len(b.tombs.over) == 0 && b.epoch == s.epoch && b.first == s.first && b.quarantine == s.quarantine
}

// edit stages a change of an owner. If before is nil the owner is begun, if after is nil it
// is forgotten.
func (b *batch) edit(before, after *entry) {
	var e Edit
	if before != nil {
		e.Before = &before.owner
		b.exits -= exit(&before.owner)
	}
	if after != nil {
		e.After = &after.owner
		b.exits += exit(&after.owner)
		b.owners.put(after.owner.ID, after)
	} else {
		b.owners.drop(before.owner.ID)
	}
	b.edits = append(b.edits, e)
	b.bytes += editBytes(before, after)
}

// editBytes returns how many bytes of a payload a change of an owner takes at most, without
// the rests of its names.
func editBytes(before, after *entry) int {
	switch {
	case after == nil:
		return 2 * dropBytes(len(before.owner.ID))
	case before != nil && sameBytes(before.json, after.json): // only Releasing has changed, which has a record of its own
		return putBytes(len(after.owner.ID), releasingBytes)
	case after.owner.Wanted():
		return putBytes(len(after.owner.ID), after.size)
	}
	return putBytes(len(after.owner.ID), after.size) + putBytes(len(after.owner.ID), releasingBytes)
}

// sameBytes reports whether two slices are the same piece of memory.
func sameBytes(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// rest and wake let a name's rest begin and end in the file.
func (b *batch) rest(n hold.Name, r rested) {
	b.rests.put(n, r)
	b.bytes += putBytes(keyLen(n), restBytes)
}

func (b *batch) wake(n hold.Name) {
	b.rests.drop(n)
	b.bytes += dropBytes(keyLen(n))
}

// change returns what the batch changes.
func (b *batch) change() Change {
	c := Change{Owners: joined(b.edits)}
	for _, n := range slices.SortedFunc(maps.Keys(b.rests.over), compareNames) {
		after, rests := b.rests.get(n)
		before, rested := b.rests.base.get(n)
		_, claimed := b.names.get(n)
		switch {
		case rests && (!rested || before.rest(n) != after.rest(n)):
			c.Rested = append(c.Rested, after.rest(n))
		case rested && !rests && claimed:
			c.Woken = append(c.Woken, n)
		}
	}
	return c
}

// joined joins consecutive edits of one owner into one, if they leave its names alone. An
// owner that is begun and releasing in one commit was never wanted, and no view should show
// it as wanted in between.
func joined(edits []Edit) []Edit {
	var all []Edit
	for _, e := range edits {
		if n := len(all); n > 0 && e.Before != nil && e.After != nil && e.Before == all[n-1].After && slices.Equal(e.Before.Names, e.After.Names) {
			all[n-1].After = e.After
			continue
		}
		all = append(all, e)
	}
	return all
}

// merge merges the batch, which is durable now, into the ledger's state. The caller holds
// the ledger's lock.
func (b *batch) merge() {
	for id, s := range b.owners.over {
		if before, _ := b.owners.base.get(id); before != nil {
			b.ledger.store.exits -= exit(&before.owner)
		}
		if s.ok {
			s.val.json = nil // the file has it now
			b.ledger.store.exits += exit(&s.val.owner)
		}
	}
	b.owners.merge()
	b.names.merge()
	b.edges.merge()
	b.rests.merge()
	b.tombs.merge()
	b.ledger.state.epoch, b.ledger.state.first, b.ledger.state.quarantine = b.epoch, b.first, b.quarantine
}
