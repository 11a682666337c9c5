package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// TestFaults lets every operation of taking, releasing and restoring fail, and lets the
// program die there, before and after the operation's effect. Whatever happened, and whether
// the program was restarted or not, a release leaves nothing, and no name was in use twice
// (the world watches that).
func TestFaults(t *testing.T) {
	points := 0
	for what, late := range map[string]bool{"in a life": false, "in the restart": true} {
		points += fault.Each(t, what, fault.Modes(), 1, 1, func(newPlan func() *fault.Plan) { faultRun(t, newPlan(), late) })
	}
	t.Logf("fault points covered: %d; residue: 0", points)
	if points < 100 {
		t.Errorf("only %d fault points: the plan does not reach the engine", points)
	}
}

func faultRun(t *testing.T, plan *fault.Plan, late bool) {
	n := bareNode(t)
	parent := owner("", "parent", "lease", "wire", "rule", "note")
	child := owner(parent.ID, "child", "wire", "lease")
	leaving := owner("", "leaving", "wire")
	if late {
		n.start(nil)
		for _, o := range []hold.Owner{parent, child, leaving} {
			take(t, n, o)
		}
		n.Close()
		n.ledger.Commit(t.Context(), ledger.Releasing(leaving.ID, time.Now()))
		n.ledger.Close()
		n.world.set(func() { delete(n.world.things, "rule "+string(parent.ID)) })
		n.start(plan.Decorate)
		n.Restore(t.Context())
	} else {
		n.start(plan.Decorate)
		ctx := t.Context()
		n.Take(ctx, parent)
		n.Take(ctx, child)
		n.Take(ctx, leaving)
		n.Release(ctx, []hold.ID{leaving.ID})
		settle(n, plan, leaving.ID)
		n.Take(ctx, owner("", "leaving", "wire")) // under the same name as before
		n.Release(ctx, []hold.ID{parent.ID})
		settle(n, plan, parent.ID)
	}
	plan.Heal()
	if plan.Mode.Kill() && plan.Surfaced() != "" {
		n.restart()
	}
	var all []hold.ID
	for _, o := range n.ledger.Owners() {
		all = append(all, o.ID)
	}
	if err := n.Release(t.Context(), all); err != nil {
		if err := n.Release(t.Context(), all); err != nil { // "try again"
			t.Errorf("releasing all: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all = append(all, parent.ID, child.ID, leaving.ID) // the engine may not know yet that the ledger has forgotten an owner
	if err := n.Wait(ctx, all...); err != nil {
		t.Errorf("waiting: %v; owed %v", err, n.Owed(""))
	}
	wantResidue(t, n, empty)
	if left := n.ledger.Owners(); len(left) > 0 {
		t.Errorf("left in the ledger: %v", left)
	}
	if r := n.Audit(t.Context()); len(r.Findings) > 0 {
		t.Errorf("audit: %v", r.Findings)
	}
	n.stop()
}

// settle waits until a release has ended, the program has died, or a failure has come that
// does not heal by itself.
func settle(n *node, plan *fault.Plan, id hold.ID) {
	ctx, cancel := plan.Context(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		n.Wait(ctx, id)
		close(done)
	}()
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
			if plan.Mode == fault.FailForever && len(n.Owed("")) > 0 && i > 2 {
				cancel()
			}
		}
	}
}
