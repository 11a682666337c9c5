package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// An owner has given back a thing that its successor has by now, and still owes something else. If the thing's kind knows it by what both have, the
// next engine does not release it once more. The owner was going while a change of it was under way.
func TestReleasedThingIsStruck(t *testing.T) {
	keyed := func(o *engine.Options) {
		i := slices.IndexFunc(o.Kinds, func(k hold.Kind) bool { return k.Name() == "rule" })
		o.Kinds[i].Keyed = true
	}
	var stuck atomic.Bool
	stuck.Store(true)
	n := newNodeOf(t, nil, keyed)
	o := owner("", "pod", "rule", "note", "rule", "port")
	o.Holds[2].Spec = &thing{K: "rule", N: "gained"}
	o.Before = &hold.Extent{Names: 1, Holds: 2}
	take(t, n, o)
	notes := func(_ context.Context, h hold.Hold) error {
		if h.Spec.Kind() == "note" && stuck.Load() {
			return errors.New("stuck")
		}
		return nil
	}
	n.world.before = on("release", notes)
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	must(t, n.WaitKind(t.Context(), "port", o.ID)) // which is not keyed
	if rec, _ := n.ledger.Owner(o.ID); len(rec.Holds) != 4 {
		t.Errorf("the record is %v", rec)
	}
	must(t, n.WaitKind(t.Context(), "rule", o.ID))
	if rec, _ := n.ledger.Owner(o.ID); len(rec.Holds) != 2 || rec.Holds[0].Spec.Kind() != "note" || *rec.Before != (hold.Extent{Names: 1, Holds: 1}) {
		t.Errorf("the record is %v, before %+v", rec, rec.Before)
	}
	must(t, n.WaitKind(t.Context(), "rule", o.ID))
	n.world.set(func() { n.world.log = nil })
	n.restart()
	must(t, n.Tried(t.Context(), o.ID))
	if log := n.world.done(); slices.ContainsFunc(log, func(op string) bool { return op == "release rule "+string(o.ID) || op == "release rule gained" }) {
		t.Errorf("the next engine has done %q", log)
	}
	stuck.Store(false)
	n.Retry()
	must(t, n.Wait(t.Context(), o.ID))
	must(t, n.WaitKind(t.Context(), "rule", o.ID), n.WaitKind(t.Context(), "no such kind", o.ID))
	wantResidue(t, n, empty)
}
