package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// The release of an owner that nobody took can begin the owner in the same commit. The owner
// is cut off, and its holds are given back.
func TestReleaseBeginsOwners(t *testing.T) {
	n := newNode(t)
	stray, other := owner("", "a", "wire", "rule"), owner("", "b", "wire", "rule")
	take(t, n, other)
	must(t, n.Take(t.Context(), stray))
	// As if the ledger had lost the owner.
	must(t, n.ledger.Commit(t.Context(), ledger.Forget(stray.ID, time.Now())))
	begun := n.ledger.Stats().Transactions
	must(t, n.Release(t.Context(), []hold.ID{stray.ID}, ledger.Begin(stray), ledger.Releasing(stray.ID, time.Now())))
	if log := n.world.done(); !slices.Contains(log, "cut wire "+string(stray.ID)) {
		t.Errorf("released, and not cut off: %v", log)
	}
	must(t, n.Wait(t.Context(), stray.ID))
	if commits := n.ledger.Stats().Transactions - begun; commits != 2 {
		t.Errorf("%d commits, want the promise and the forget", commits)
	}
	if got := n.eventTypes(stray.ID); got != "attaching attached releasing released" {
		t.Errorf("events: %s", got)
	}
	release(t, n, other.ID)
	wantResidue(t, n, empty)
}
