package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// A hold that waits in its line is severed, although the Sever of another hold hangs and does
// not heed its context. Until a hold is severed, the hold's cut has only one leg.
func TestHangingSeverKeepsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		severed := map[hold.ID]bool{}
		heal := make(chan struct{})
		n := bareNode(t)
		first := owner("", "first", "wire")
		n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			wire := &ks[1]
			release := wire.Release
			wire.Release = func(ctx context.Context, hs []hold.Hold) []error {
				<-heal // so that all of them wait
				return release(ctx, hs)
			}
			wire.Sever = func(_ context.Context, hs []hold.Hold) error {
				for _, h := range hs {
					if h.Owner == first.ID {
						<-heal
					}
					n.world.set(func() { severed[h.Owner] = true })
				}
				return nil
			}
			return l, ks
		}, func(o *engine.Options) {})
		defer n.stop()
		second := owner("", "second", "wire")
		take(t, n, first)
		take(t, n, second)
		for _, o := range []hold.Owner{first, second} {
			must(t, n.Release(t.Context(), []hold.ID{o.ID}))
			time.Sleep(time.Second) // of the bubble's clock
		}
		time.Sleep(10 * time.Second)
		n.world.set(func() {
			if !severed[second.ID] {
				t.Error("what waits is not severed")
			}
		})
		close(heal)
	})
}

// A Sever has the time that its kind says, not the engine's usual one.
func TestSeverHasItsKindsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var had time.Duration
		n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			wire := &ks[1]
			release := wire.Release
			wire.Try = time.Minute
			wire.Release = func(ctx context.Context, hs []hold.Hold) []error {
				time.Sleep(time.Second) // so that it has to be severed
				return release(ctx, hs)
			}
			wire.Sever = func(ctx context.Context, _ []hold.Hold) error {
				end, _ := ctx.Deadline()
				had = time.Until(end)
				return nil
			}
			return l, ks
		}, func(o *engine.Options) { o.Try = 2 * time.Second })
		o := owner("", "pod", "wire")
		take(t, n, o)
		release(t, n, o.ID)
		if had != time.Minute {
			t.Errorf("Sever had %s, want the minute of its kind", had)
		}
	})
}
