package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// A lazy kind gathers what comes within nine times as long as its last Release
// took, and stops gathering when somebody waits.
func TestLazyKindGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, world: newWorld(t), path: memory(t) + "/ledger.db"}
		n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			ks[1].Lazy, ks[1].Flight = true, 1 // wire
			return l, ks
		})
		defer n.stop()
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
		start := time.Now()
		drop := func(id hold.ID) {
			if err := n.Release(t.Context(), []hold.ID{id}); err != nil {
				t.Fatal(err)
			}
		}
		drop(ids[0])
		time.Sleep(20 * time.Millisecond)
		drop(ids[1])
		time.Sleep(20 * time.Millisecond)
		drop(ids[2])
		time.Sleep(40 * time.Millisecond)
		if got := len(n.world.find("wire")); got != 2 {
			t.Errorf("after %v %d wires are left, want 2: the line did not gather", time.Since(start), got)
		}
		if err := n.Wait(t.Context(), ids...); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 105*time.Millisecond || n.world.batch["wire"] != 2 {
			t.Errorf("gone after %v in batches of up to %d, want 100ms and 2: nobody hastened", took, n.world.batch["wire"])
		}
	})
}
