package hold

import (
	"context"
	"sync"
)

type lookKey struct{}

// look is what was seen so far.
type look struct {
	seen   sync.Map
	glance bool
}

func lookOf(ctx context.Context) *look {
	l, _ := ctx.Value(lookKey{}).(*look)
	return l
}

// OneLook returns a context for one look at the world: what a kind sees in its
// Find may serve the Verify that follows under the same context. What seems to
// differ then, Verify has to look at again.
func OneLook(ctx context.Context) context.Context {
	return context.WithValue(ctx, lookKey{}, new(look))
}

// Glance is OneLook for a look that need not be fresh, since it is repeated or
// whoever asks is told of changes: a kind that is, too, may go by what it has been
// told since it last looked itself.
func Glance(ctx context.Context) context.Context {
	return context.WithValue(ctx, lookKey{}, &look{glance: true})
}

// Glancing reports whether ctx is of a Glance.
func Glancing(ctx context.Context) bool {
	l := lookOf(ctx)
	return l != nil && l.glance
}

// Remember keeps what was seen for the rest of the look, if ctx is of one.
func Remember(ctx context.Context, key, seen any) {
	if l := lookOf(ctx); l != nil {
		l.seen.Store(key, seen)
	}
}

// Remembered returns what was last remembered in this look; nil: nothing.
func Remembered(ctx context.Context, key any) any {
	l := lookOf(ctx)
	if l == nil {
		return nil
	}
	seen, _ := l.seen.Load(key)
	return seen
}
