package engine_test

import (
	"context"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

// The delegates of a pod are undone in reverse. Each is tried, and one that fails delays none
// of the others.
func TestOrderedUseHolds(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	o := owner("", "pod")
	o.Ordered = true
	for _, name := range []string{"a", "b", "c"} {
		o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: &thing{K: "rule", N: name}})
	}
	take(t, n, o)
	n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
		if h.Spec.String() == "rule b" {
			return failing("release", o.ID)(ctx, op, h)
		}
		return nil
	}
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	tried(t, n, o.ID)
	log := n.world.done()
	if log = log[3:]; !slices.Equal(log, []string{"release rule c", "release rule a"}) {
		t.Errorf("the order is %q, want c and a, with b tried in between", log)
	}
	if owed := n.Owed(o.ID); len(owed) != 1 || owed[0].Hold.Spec.String() != "rule b" || owed[0].Tries != 1 {
		t.Errorf("owed: %v", owed)
	}
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	n.Retry(o.ID)
	must(t, n.Wait(t.Context(), o.ID))
	wantResidue(t, n, empty)
}
