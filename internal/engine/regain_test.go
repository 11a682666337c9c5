package engine_test

import (
	"context"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

// An owner loses a thing by a change, and gets it again by another one. Then the thing is the
// owner's, also if the program ends before the remnant that gave it back is forgotten.
func TestRegainedOutlivesARestart(t *testing.T) {
	n, disk := onDisk(t)
	disk.FillFor("ledger.forget")
	o := owner("", "pod", "wire", "proc")
	take(t, n, o)
	for _, holds := range [][]hold.Hold{o.Holds[:1], o.Holds} {
		if _, err := n.Change(t.Context(), o.ID, func(o *hold.Owner) error { o.Holds = holds; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	remnants := n.ledger.Needers(o.ID)
	if len(remnants) != 1 {
		t.Fatalf("remnants: %v", remnants)
	}
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "release" && h.Spec.Kind() == "proc" {
			t.Errorf("%s is released", h.Spec)
		}
		return nil
	}
	n.restart()
	must(t, n.Wait(t.Context(), remnants...))
	if rep, err := n.Sweep(t.Context()); err != nil || len(rep.Findings) > 0 || !n.world.has(o.Holds[1]) {
		t.Errorf("the sweep finds %v, %v; it is there: %t", rep.Findings, err, n.world.has(o.Holds[1]))
	}
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}
