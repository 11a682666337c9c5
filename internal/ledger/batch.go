package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// batch is a transaction being put together: the commits of several callers,
// staged over the ledger's state. A caller that is refused leaves no trace.
type batch struct {
	ledger *Ledger
	now    time.Time
	spans  spans

	owners  layer[hold.ID, *entry]
	names   layer[hold.Name, hold.ID]
	needers layer[hold.ID, []hold.ID]
	rests   layer[hold.Name, Rest]
	tombs   layer[string, Tombstone]
	epoch   Epoch
	first   *First
	edits   []Edit

	quarantine Quarantine

	pages int   // of the file's spare ones that what adds takes, at most
	full  error // why there are no more
}

func (l *Ledger) newBatch() *batch {
	s := &l.state
	return &batch{
		ledger:  l,
		now:     plain(l.opts.Clock.Now()),
		spans:   l.spans(),
		owners:  newLayer(s.owners),
		names:   newLayer(s.names),
		needers: newLayer(s.needers),
		rests:   newLayer(s.rests),
		tombs:   newLayer(s.tombs),
		epoch:   s.epoch,
		first:   s.first,

		quarantine: s.quarantine,
	}
}

// stage runs the steps of one commit, all or none.
func (b *batch) stage(steps []step) error {
	owners, names, needers := b.owners.mark(), b.names.mark(), b.needers.mark()
	rests, tombs := b.rests.mark(), b.tombs.mark()
	epoch, first, quarantine, edits, pages := b.epoch, b.first, b.quarantine, len(b.edits), b.pages
	for _, s := range steps {
		if err := s.do(b); err != nil {
			b.owners.back(owners)
			b.names.back(names)
			b.needers.back(needers)
			b.rests.back(rests)
			b.tombs.back(tombs)
			b.epoch, b.first, b.quarantine, b.edits, b.pages = epoch, first, quarantine, b.edits[:edits], pages
			return err
		}
	}
	return nil
}

// empty reports whether the batch changes nothing.
func (b *batch) empty() bool {
	s := &b.ledger.state
	return len(b.edits) == 0 && len(b.tombs.over) == 0 && b.epoch == s.epoch && b.first == s.first && b.quarantine == s.quarantine
}

// edit stages a change of an owner; nil before: begun, nil after: forgotten.
func (b *batch) edit(before, after *entry) {
	var e Edit
	if before != nil {
		e.Before = &before.owner
	}
	if after != nil {
		e.After = &after.owner
		b.owners.put(after.owner.ID, after)
	} else {
		b.owners.drop(before.owner.ID)
	}
	b.edits = append(b.edits, e)
}

// change says what the batch comes to.
func (b *batch) change() Change {
	c := Change{Owners: joined(b.edits)}
	for _, n := range slices.SortedFunc(maps.Keys(b.rests.over), compareNames) {
		after, rests := b.rests.get(n)
		before, rested := b.rests.base[n]
		_, claimed := b.names.get(n)
		switch {
		case rests && (!rested || before != after):
			c.Rested = append(c.Rested, after)
		case rested && !rests && claimed:
			c.Woken = append(c.Woken, n)
		}
	}
	return c
}

// joined makes one edit of those that follow each other of one owner and leave its
// names alone: who is begun and releasing in one commit never was wanted, and no
// view should show it so in between.
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

// merge makes the batch the ledger's state. The ledger's lock is held.
func (b *batch) merge() {
	for _, s := range b.owners.over {
		if s.ok {
			s.val.json = nil // it is in the file now
		}
	}
	b.owners.merge()
	b.names.merge()
	b.needers.merge()
	b.rests.merge()
	b.tombs.merge()
	b.ledger.state.epoch, b.ledger.state.first, b.ledger.state.quarantine = b.epoch, b.first, b.quarantine
	b.ledger.state.seq = b.ledger.store.head.Seq
}
