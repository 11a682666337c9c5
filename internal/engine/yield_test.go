package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// Several batches of one kind are released at once. While an owner is being taken, and shortly
// after, the batches are smaller, and go one after the other, with pauses: Takes and releases need
// the same locks of the kernel.
func TestReleasesYieldToTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := bareNode(t)
		var mu sync.Mutex
		calls, total, most, largest := 0, 0, 0, 0
		n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			wire := &ks[1]
			wire.Batch, wire.Flight, wire.Yield = 4, 4, 2
			release := wire.Release
			wire.Release = func(ctx context.Context, hs []hold.Hold) []error {
				mu.Lock()
				calls++
				total++
				most, largest = max(most, calls), max(largest, len(hs))
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
		many := func(number int) (ids []hold.ID) {
			for i := range number {
				o := owner("", fmt.Sprint("many", i), "wire")
				take(t, n, o)
				ids = append(ids, o.ID)
			}
			return ids
		}
		drop := func(ids []hold.ID) {
			must(t, n.Release(t.Context(), ids))
		}
		wants := func(when string, wantCalls, wantLargest int) {
			mu.Lock()
			defer mu.Unlock()
			if most != wantCalls || largest != wantLargest {
				t.Errorf("%s: %d calls at once, of %d holds at most; want %d and %d", when, most, largest, wantCalls, wantLargest)
			}
			total, most, largest = 0, 0, 0
		}
		ids := many(40)
		time.Sleep(time.Second)
		drop(ids)
		must(t, n.Wait(t.Context(), ids...))
		wants("alone", 4, 4)

		ids = many(40)
		drop(ids)
		time.Sleep(45 * time.Millisecond)
		wants("just after somebody was taken", 0, 0)
		time.Sleep(30 * time.Millisecond)
		wants("a little later", 1, 2)
		begun := time.Now()
		must(t, n.Wait(t.Context(), ids...))
		wants("once somebody waits, and nobody is taken", 4, 4)
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("who waits does so for %v, pauses included", took)
		}

		ids = many(200)
		drop(ids)
		time.Sleep(95 * time.Millisecond)
		if mu.Lock(); total < 4 { // the first call may have begun its pause before the others waited
			t.Errorf("of very many, %d calls in a tenth of a second: they still pause", total)
		}
		mu.Unlock()
		wants("of very many, just after somebody was taken", 1, 2)
		must(t, n.Wait(t.Context(), ids...))
		wants("and then", 4, 4)

		ids = many(40)
		slow, taken := owner("", "slow", "rule"), make(chan struct{})
		n.world.before = hanging(taken, "acquire", slow.ID)
		var taking sync.WaitGroup
		taking.Go(func() { take(t, n, slow) })
		synctest.Wait()
		drop(ids)
		time.Sleep(125 * time.Millisecond)
		wants("beside one who is being taken", 1, 2)
		close(taken)
		taking.Wait()
		must(t, n.Wait(t.Context(), ids...))
		release(t, n, slow.ID)
	})
}
