package engine_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// deafCuts lets the cuts of some owners hang, whatever their contexts say, until
// heal is called.
func deafCuts(n *node, owners ...hold.ID) (heal func()) {
	healed := make(chan struct{})
	n.world.before = hanging(healed, "cut", owners...)
	return func() { close(healed) }
}

// inBubble runs f with a node of the bubble's time.
func inBubble(t *testing.T, f func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, newNode(t))
	})
}

// A cut hangs and does not heed its context. A caller waits for it no longer than the
// caller's context and Options.Mending allow. No caller hears that the owner is cut off,
// and callers that ask again and again cost no goroutines. When the cut answers at last,
// the owner goes.
func TestDeafCutKeepsNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		o := owner("", "a", "wire")
		take(t, n, o)
		heal := deafCuts(n, o.ID)
		for _, patience := range []time.Duration{100 * time.Millisecond, time.Hour} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			began := time.Now()
			err := n.Release(ctx, []hold.ID{o.ID})
			cancel()
			if took, most := time.Since(began), min(patience, n.Mending); !errors.Is(err, engine.ErrReachable) || took > most {
				t.Errorf("who has %v hears after %v: %v", patience, took, err)
			}
		}
		before := runtime.NumGoroutine()
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_ = n.Release(ctx, []hold.ID{o.ID})
			_ = n.Wait(ctx, o.ID)
			cancel()
		}
		synctest.Wait()
		if grown := runtime.NumGoroutine() - before; grown > 5 {
			t.Errorf("50 releases have left %d goroutines", grown)
		}
		heal()
		release(t, n, o.ID)
		wantResidue(t, n, empty)
	})
}

// More cuts hang than may run at once. These cuts do not hold up another owner that departs in the
// same call: a drain and the start of the agent release all of their owners in one call.
func TestDeafCutsKeepNoPlaces(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		var ids []hold.ID
		for i := range 40 {
			o := owner("", "deaf "+string(rune('a'+i)), "wire")
			take(t, n, o)
			ids = append(ids, o.ID)
		}
		good := owner("", "good", "wire")
		take(t, n, good)
		heal := deafCuts(n, ids...)
		began := time.Now()
		err := n.Release(t.Context(), append(ids, good.ID))
		if took := time.Since(began); !errors.Is(err, engine.ErrReachable) || took > n.Mending {
			t.Errorf("all of them: after %v: %v", took, err)
		}
		must(t, n.Wait(t.Context(), good.ID))
		if took := time.Since(began); took > n.Mending {
			t.Errorf("another owner goes after %v", took)
		}
		heal()
		must(t, n.Wait(t.Context(), ids...))
		wantResidue(t, n, empty)
	})
}

// What a Depart costs without its cut: the way to the engine's own goroutine and back.
func BenchmarkDepart(b *testing.B) {
	n := newNode(b)
	o := owner("", "a", "wire")
	must(b, n.Take(b.Context(), o))
	let := make(chan struct{})
	n.world.before = hanging(let, "release")
	defer close(let)
	must(b, n.Release(b.Context(), []hold.ID{o.ID}))
	for b.Loop() {
		must(b, n.Depart(b.Context(), []hold.ID{o.ID}))
	}
}
