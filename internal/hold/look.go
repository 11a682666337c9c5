package hold

import "sync"

// Look is one look at the world, in which a kind's Verify may use what its Find has seen
// before. If a hold seems to differ by what Find has seen, Verify has to look at the hold again. A
// nil Look is a look of a single call, which remembers nothing.
type Look struct {
	seen   sync.Map
	glance bool
}

// Glance returns a look that need not be fresh, because it is repeated, or because the
// caller hears of changes. A kind that hears of changes itself may answer from what it has
// heard since it last looked.
func Glance() *Look { return &Look{glance: true} }

// IsGlance reports whether the look is a Glance.
func (l *Look) IsGlance() bool { return l != nil && l.glance }

// Remember keeps, for the rest of the look, what was seen.
func (l *Look) Remember(key, seen any) {
	if l != nil {
		l.seen.Store(key, seen)
	}
}

// Remembered returns what was last remembered under key in this look, or nil.
func (l *Look) Remembered(key any) any {
	if l == nil {
		return nil
	}
	seen, _ := l.seen.Load(key)
	return seen
}
