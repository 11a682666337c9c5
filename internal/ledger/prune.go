package ledger

import (
	"slices"
	"time"
)

// Limits of records that the ledger keeps although nobody needs them: a caller may want the
// name that has rested longest. Pruning has to look through all records, so the writer prunes only
// now and then.
const (
	maxDue     = 1024 // how many rests that are over are kept
	maxTombs   = 1024 // how many tombstones are kept before expired ones go
	pruneEvery = 10 * time.Second
)

// prune drops the oldest rests that are over and expired tombstones from memory, if there are
// too many, and tombstones of other boots than the epoch's. It drops nothing from the file: the
// records vanish when the file is next written anew, and until then each reader of the file drops
// them again. So pruning takes no room in the log, which a full disk may lack.
func (s *state) prune(now time.Time, boottime int64) {
	s.pruneRests(now)
	s.rests.shrink()
	many := s.tombs.len() > maxTombs
	s.tombs.dropAll(func(t tomb) bool {
		return many && t.until < boottime || s.epoch.Boot != "" && t.boot != s.epoch.Boot
	})
	s.tombs.shrink()
}

// pruneRests keeps the maxDue youngest of the rests that are over, and drops the older ones.
func (s *state) pruneRests(now time.Time) {
	if s.rests.len() <= maxDue {
		return
	}
	var due []int64 // when they were freed
	for r := range s.rests.values() {
		if r.over(now) {
			due = append(due, r.freed)
		}
	}
	drop := len(due) - maxDue
	if drop <= 0 {
		return
	}
	slices.Sort(due)
	last := due[drop-1]
	same, _ := slices.BinarySearch(due, last) // how many were freed before `last`
	s.rests.dropAll(func(r rested) bool { return r.over(now) && r.freed < last })
	for _, key := range s.rests.keys(func(r rested) bool { return r.over(now) && r.freed == last })[:drop-same] {
		s.rests.drop(key)
	}
}

// prune prunes the ledger. No transaction is being put together meanwhile.
func (l *Ledger) prune() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.prune(l.now, l.boottime)
}

// look notes what Options.Clock says now.
func (l *Ledger) look() {
	l.now, l.boottime = plain(l.opts.Clock.Now()), l.opts.Clock.Boottime()
}
