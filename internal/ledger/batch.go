package ledger

import (
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
	needers layer[hold.ID, []hold.ID]
	rests   layer[hold.Name, Rest]
	tombs   layer[string, Tombstone]
	epoch   Epoch
	first   *First
	edits   []Edit

	quarantine Quarantine

	pages int   // how many of the file's spare pages the ops that add may take, at most
	full  error // why the file has no more spare pages; nil: it has, as far as is known
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

// edit stages a change of an owner. If before is nil the owner is begun, if after is nil it
// is forgotten.
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

// change returns what the batch changes.
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
	for _, s := range b.owners.over {
		if s.ok {
			s.val.json = nil // the file has it now
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
