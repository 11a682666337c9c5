package engine_test

import (
	"context"
	"testing"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
)

// A program that ends between a discovery and its commit leaves a hold that is
// there and a record that does not say what it is. The next one has to find it
// out and write it down, or nobody ever does.
func TestRestoreWritesDownWhatIsDiscovered(t *testing.T) {
	n := newNode(t)
	n.stop()
	plan := fault.New(3, fault.KillBefore) // begin, acquire, and not the update
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) { return plan.Decorate(l, ks) })
	o := owner("", "a", "lease")
	if err := n.Take(context.Background(), o); err == nil {
		t.Fatalf("the fault did not surface: %q", plan.Surfaced())
	}
	n.restart()
	rec, ok := n.ledger.Owner(o.ID)
	if !ok || rec.Holds[0].Spec.(*thing).Seen != "leased" {
		t.Errorf("after a restart the ledger has %v", rec)
	}
	n.restart()
	if rec, _ := n.ledger.Owner(o.ID); rec.Holds[0].Spec.(*thing).Seen != "leased" {
		t.Errorf("it was not written down: %v", rec)
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}
