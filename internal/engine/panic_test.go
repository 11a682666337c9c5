package engine_test

import (
	"context"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

// A kind that panics, as one did when a socket of the pod broke, fails only one request. The
// owner is then released like any other, and no release waits for the owner's turn for ever.
func TestPanic(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire")
	n.world.before = on("acquire", func(context.Context, hold.Hold) error { panic("of a kind") })
	takePanics(t, n, o)
	release(t, n, o.ID)
}

// takePanics takes an owner of which one kind panics. Who has called Take is to tell of the panic.
func takePanics(t *testing.T, n *node, o hold.Owner) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("the panic did not reach who is to tell of it")
		}
	}()
	_ = n.Take(t.Context(), o)
}
