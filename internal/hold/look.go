package hold

import (
	"context"
	"sync"
)

type lookKey struct{}

// OneLook returns a context for one look at the world: what a kind sees in its
// Find may serve the Verify that follows under the same context. What seems to
// differ then, Verify has to look at again.
func OneLook(ctx context.Context) context.Context {
	return context.WithValue(ctx, lookKey{}, new(sync.Map))
}

// Remember keeps what was seen for the rest of the look, if ctx is of one.
func Remember(ctx context.Context, key, seen any) {
	if look, ok := ctx.Value(lookKey{}).(*sync.Map); ok {
		look.Store(key, seen)
	}
}

// Remembered returns what was last remembered in this look; nil: nothing.
func Remembered(ctx context.Context, key any) any {
	look, ok := ctx.Value(lookKey{}).(*sync.Map)
	if !ok {
		return nil
	}
	seen, _ := look.Load(key)
	return seen
}
