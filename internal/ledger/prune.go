package ledger

// Bounds of what is kept though nobody needs it, and how far beyond a bound it
// may run, so that looking everything through is seldom.
const (
	maxDue   = 16384 // rests that are due
	pruneLag = 1024  // records
)

// pruning is how many records the last look has left.
type pruning struct{ rests, tombs int }

// prune drops the oldest of too many rests that are due, tombstones that have
// expired, and with a new epoch those of other boots.
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
