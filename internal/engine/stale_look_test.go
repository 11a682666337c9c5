package engine_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// A sweep reads the ledger before a Take writes down what a lease has discovered, and looks at the lease after that. The sweep takes the
// lease for changed, and cannot take it again. The ledger must not lose what the Take has written: the lease's release needs it.
func TestStaleLook(t *testing.T) {
	n := bareNode(t)
	t.Cleanup(n.stop)
	var looks atomic.Int32
	taken := func() {}
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		lease := &ks[0]
		find := lease.Find
		lease.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			if looks.Add(1) == 2 { // because of the thing that nobody owns; the sweep has read the ledger
				taken()
			}
			return find(ctx, look)
		}
		return l, ks
	})
	acquire, reached, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	goOn := sync.OnceFunc(func() { close(acquire) })
	t.Cleanup(goOn)
	n.world.before = on("acquire", func(context.Context, hold.Hold) error {
		close(reached)
		<-acquire
		return nil
	})
	n.world.set(func() { n.world.things["rule nobody's"] = hold.NewID() })
	o := owner("", "a", "lease")
	go func() { done <- n.Take(t.Context(), o) }()
	<-reached
	taken = func() {
		goOn()
		if err := <-done; err != nil {
			t.Error(err)
		}
		n.world.before = failing("acquire")
	}
	_, _ = n.Sweep(t.Context())
	if looks.Load() != 2 {
		t.Fatalf("the sweep has looked %d times", looks.Load())
	}
	rec, _ := n.ledger.Owner(o.ID)
	if _, lease := leaseOf(rec); lease.Seen != "leased" {
		t.Errorf("the ledger has %+v", lease)
	}
	n.world.before = failing("nothing")
	mustSweep(t, n) // and removes what nobody owns
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}
