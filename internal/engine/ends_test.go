package engine_test

import (
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// A process that has ended is not begun again, and is no difference. Its owner is told
// once in each life of the engine, and is released like any other.
func TestGoneIsTheEnd(t *testing.T) {
	ends := func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		ks[2].Ends = true
		return l, ks
	}
	n := newNodeOf(t, ends)
	o := owner("", "container", "wire", "rule")
	take(t, n, o)
	n.world.set(func() { delete(n.world.things, "rule "+string(o.ID)) })
	look := func(when string, told int) {
		t.Helper()
		for range 2 {
			if rep, err := n.Sweep(t.Context()); err != nil || len(rep.Findings) > 0 {
				t.Errorf("%s: a sweep finds %v, %v", when, rep.Findings, err)
			}
			if err := n.Repair(t.Context(), o.ID); err != nil {
				t.Errorf("%s: repair: %v", when, err)
			}
		}
		if n.world.has(o.Holds[1]) {
			t.Errorf("%s: it was taken again", when)
		}
		if types := n.eventTypes(o.ID); strings.Count(types, "ended") != told {
			t.Errorf("%s: events %s, want ended %d times", when, types, told)
		}
	}
	look("it ended", 1)
	n.stop()
	n.start(ends)
	if err := n.Restore(t.Context()); err != nil {
		t.Error(err)
	}
	look("after a restart", 2)
	n.world.set(func() {
		delete(n.world.things, "wire "+string(o.ID))
		delete(n.world.users, "container")
	})
	if err := n.Repair(t.Context(), o.ID); err != nil || !n.world.has(o.Holds[0]) {
		t.Errorf("what does not end is not taken again: %v", err)
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}
