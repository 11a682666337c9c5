package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// A kind has no more calls at once than its Flight, however long they take: if all owners go at
// once, they do not all ask a slow cloud at once. If there is more than one place, holds that hang
// leave one to the others.
func TestFlightIsStrict(t *testing.T) {
	for _, flight := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(flight), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, most := 0, 0
				hangs := map[hold.ID]bool{}
				n := bareNode(t)
				n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
					wire := &ks[1]
					release := wire.Release
					wire.Batch, wire.Flight, wire.Cut = 4, flight, nil
					wire.Release = func(ctx context.Context, hs []hold.Hold) []error {
						n.world.set(func() { calls++; most = max(most, calls) })
						defer n.world.set(func() { calls-- })
						for _, h := range hs {
							hung := false
							n.world.set(func() { hung = hangs[h.Owner] })
							if hung {
								time.Sleep(1500 * time.Millisecond) // of the bubble's clock, and longer than a try may take
								errs := make([]error, len(hs))
								for i := range errs {
									errs[i] = ctx.Err()
								}
								return errs
							}
						}
						return release(ctx, hs)
					}
					return l, ks
				}, func(o *engine.Options) {
					o.Try, o.Backoff, o.MaxBackoff = time.Second, 20*time.Millisecond, 100*time.Millisecond
				})
				defer n.stop()
				var all, good []hold.ID
				for i := range 40 {
					o := owner("", fmt.Sprint(i), "wire")
					if i%8 == 0 {
						n.world.set(func() { hangs[o.ID] = true })
					} else {
						good = append(good, o.ID)
					}
					all = append(all, o.ID)
					take(t, n, o)
				}
				time.Sleep(time.Second) // no owner is being taken any more
				for _, id := range all {
					must(t, n.Release(t.Context(), []hold.ID{id}))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if err := n.Wait(ctx, good...); err != nil {
					t.Errorf("those that do not hang: %v, %d owed", err, len(n.Owed("")))
				}
				time.Sleep(time.Minute)
				n.world.set(func() {
					if most > flight {
						t.Errorf("%d calls at once of a kind of Flight %d", most, flight)
					}
					clear(hangs)
				})
				must(t, n.Wait(ctx, all...))
				wantResidue(t, n, empty)
			})
		})
	}
}
