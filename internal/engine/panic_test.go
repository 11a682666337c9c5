package engine_test

import (
	"context"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

// A kind that panics, as one did when a socket of the pod broke, fails one
// request: the owner is released like any other, and not waited for without end.
func TestPanic(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire")
	n.world.before = func(_ context.Context, op string, _ hold.Hold) error {
		if op == "acquire" {
			panic("of a kind")
		}
		return nil
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not reach who is to tell of it")
			}
		}()
		_ = n.Take(t.Context(), o)
	}()
	if err := n.Release(t.Context(), []hold.ID{o.ID}); err != nil {
		t.Fatal(err)
	}
	if err := n.Wait(t.Context(), o.ID); err != nil {
		t.Error(err)
	}
}
