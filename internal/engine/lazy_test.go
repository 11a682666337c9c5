package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// A lazy kind lets a moment pass before its first Release. After a Release it gathers holds
// for nine times as long as that Release took, and stops when somebody waits for releases.
func TestLazyKindGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			ks[1].Lazy, ks[1].Flight = true, 1 // wire
			return l, ks
		})
		var ids []hold.ID
		for _, name := range []string{"first", "second", "third"} {
			o := owner("", name, "wire")
			take(t, n, o)
			ids = append(ids, o.ID)
		}
		n.world.before = func(_ context.Context, op string, _ hold.Hold) error {
			if op == "release" {
				time.Sleep(10 * time.Millisecond) // of the bubble's clock
			}
			return nil
		}
		drop := func(id hold.ID) {
			must(t, n.Release(t.Context(), []hold.ID{id}))
		}
		want := func(when string, after time.Duration, left int) {
			t.Helper()
			time.Sleep(after)
			if got := len(n.world.find("wire")); got != left {
				t.Errorf("%s %d wires are left, want %d", when, got, left)
			}
		}
		drop(ids[0])
		want("a moment after the first", 45*time.Millisecond, 3)
		want("then", 20*time.Millisecond, 2)
		drop(ids[1])
		want("while the line gathers", 20*time.Millisecond, 2)
		drop(ids[2])
		want("while the line gathers more", 40*time.Millisecond, 2)
		start := time.Now()
		must(t, n.Wait(t.Context(), ids...))
		if took := time.Since(start); took > 25*time.Millisecond || n.world.batch["wire"] != 2 {
			t.Errorf("gone after %v in batches of up to %d, want 20ms and 2: nobody hastened", took, n.world.batch["wire"])
		}
	})
}
