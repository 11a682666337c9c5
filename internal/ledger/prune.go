package ledger

// Limits of records that the ledger keeps although nobody needs them. Pruning has to look
// through all records, so it begins only when there are pruneLag records too many.
const (
	maxDue   = 16384 // how many rests that are over are kept
	pruneLag = 1024  // records
)

// pruning is how many records the last pruning has left.
type pruning struct{ rests, tombs int }

// prune drops the oldest rests that are over, if there are too many of these; tombstones
// that have expired; and, with a new epoch, tombstones of other boots.
func (b *batch) prune(p *pruning) {
	s := &b.ledger.state
	if len(s.rests)+len(b.rests.over) > max(maxDue, p.rests)+pruneLag {
		p.rests = b.pruneRests()
	}
	if len(s.tombs)+len(b.tombs.over) > p.tombs+pruneLag || b.epoch != s.epoch {
		p.tombs = b.pruneTombs()
	}
}

func (b *batch) pruneRests() (left int) {
	var due []Rest
	for _, r := range b.rests.all() {
		left++
		if !b.now.Before(r.Until) {
			due = append(due, r)
		}
	}
	sortRests(due)
	for _, r := range due[:max(0, len(due)-maxDue)] {
		b.rests.drop(r.Name)
		left--
	}
	return left
}

func (b *batch) pruneTombs() (left int) {
	now := b.ledger.opts.Clock.Boottime()
	turned := b.epoch != b.ledger.state.epoch
	for key, t := range b.tombs.all() {
		if t.Until < now || turned && t.Boot != b.epoch.Boot {
			b.tombs.drop(key)
		} else {
			left++
		}
	}
	return left
}
