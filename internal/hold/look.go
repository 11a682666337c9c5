package hold

import "sync"

// Look is one look at the world: what a kind sees in its Find may serve the Verify that
// follows in the same look. What seems to differ then, Verify has to look at again. A nil
// Look is one for a single call.
type Look struct {
	seen   sync.Map
	glance bool
}

// Glance returns a look that need not be fresh, since it is repeated or whoever asks is
// told of changes: a kind that is told, too, may go by what it has heard since it last
// looked itself.
func Glance() *Look { return &Look{glance: true} }

// IsGlance reports whether the look is a Glance.
func (l *Look) IsGlance() bool { return l != nil && l.glance }

// Remember keeps what was seen for the rest of the look.
func (l *Look) Remember(key, seen any) {
	if l != nil {
		l.seen.Store(key, seen)
	}
}

// Remembered returns what was last remembered in this look; nil: nothing.
func (l *Look) Remembered(key any) any {
	if l == nil {
		return nil
	}
	seen, _ := l.seen.Load(key)
	return seen
}
