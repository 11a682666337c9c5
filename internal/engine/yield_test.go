package engine_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// Batches of one kind go several at once, but one after the other while an
// owner is being taken: both need the same locks of the kernel.
func TestReleasesYieldToTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, world: newWorld(t), path: memory(t) + "/ledger.db"}
		var mu sync.Mutex
		calls, most := 0, 0
		n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			wire := &ks[1]
			wire.Batch, wire.Flight = 2, 4
			release := wire.Release
			wire.Release = func(ctx context.Context, hs []hold.Hold) []error {
				mu.Lock()
				calls++
				most = max(most, calls)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond) // of the bubble's clock
				mu.Lock()
				calls--
				mu.Unlock()
				return release(ctx, hs)
			}
			return l, ks
		})
		defer n.stop()
		many := func() (ids []hold.ID) {
			for i := range 16 {
				o := owner("", "many"+strings.Repeat("x", i), "wire")
				take(t, n, o)
				ids = append(ids, o.ID)
			}
			return ids
		}
		drop := func(ids []hold.ID) {
			if err := n.Release(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
		}
		ids := many()
		drop(ids)
		if err := n.Wait(t.Context(), ids...); err != nil || most != 4 {
			t.Errorf("alone: %d calls at once, want 4; %v", most, err)
		}

		ids, most = many(), 0
		slow, taken := owner("", "slow", "rule"), make(chan struct{})
		n.world.before = func(_ context.Context, op string, h hold.Hold) error {
			if op == "acquire" && h.Owner == slow.ID {
				<-taken
			}
			return nil
		}
		var taking sync.WaitGroup
		taking.Go(func() { take(t, n, slow) })
		synctest.Wait()
		drop(ids)
		time.Sleep(25 * time.Millisecond)
		if mu.Lock(); most != 1 {
			t.Errorf("beside one who is being taken: %d calls at once, want 1", most)
		}
		mu.Unlock()
		close(taken)
		taking.Wait()
		if err := n.Wait(t.Context(), ids...); err != nil || most != 4 {
			t.Errorf("and then: %d calls at once, want 4; %v", most, err)
		}
		release(t, n, slow.ID)
	})
}
