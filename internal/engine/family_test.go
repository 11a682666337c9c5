package engine_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// A parent's hold that its children need goes after all holds of all children.
func TestUseGoesAfterItsChildrens(t *testing.T) {
	n := newNode(t)
	parent := owner("", "p", "rule")
	child := owner(parent.ID, "c", "rule", "wire")
	take(t, n, parent)
	take(t, n, child)
	reached, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "release" && h.Owner == child.ID && h.Spec.Kind() == "rule" {
			once.Do(func() { close(reached) })
			<-let
		}
		return nil
	}
	must(t, n.Release(t.Context(), []hold.ID{parent.ID}))
	<-reached
	must(t, n.WaitKind(t.Context(), "wire", child.ID)) // by then the engine has gone on
	if log := n.world.done(); slices.Contains(log, "release rule "+string(parent.ID)) {
		t.Errorf("the parent's rule goes beside its child's: %q", log)
	}
	close(let)
	must(t, n.Wait(t.Context(), parent.ID))
	log := n.world.done()
	if slices.Index(log, "release rule "+string(parent.ID)) < slices.Index(log, "release rule "+string(child.ID)) {
		t.Errorf("the order is %q", log)
	}
	wantResidue(t, n, empty)
}

// Each cut of a family may take seconds. The cuts run at once, so that nobody waits for the sum of
// their times.
func TestCutsOfAFamilyGoSideBySide(t *testing.T) {
	n := newNode(t)
	const children = 5
	var mu sync.Mutex
	under, all := 0, make(chan struct{})
	n.world.before = func(_ context.Context, op string, _ hold.Hold) error {
		if op != "cut" {
			return nil
		}
		mu.Lock()
		if under++; under == children {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-time.After(10 * time.Second):
			t.Error("a cut waits for another one")
		}
		return nil
	}
	parent := owner("", "p", "rule")
	take(t, n, parent)
	for i := range children {
		take(t, n, owner(parent.ID, string(rune('a'+i)), "wire"))
	}
	release(t, n, parent.ID)
	wantResidue(t, n, empty)
}

// A caller that waits for the outcome of a parent's tries hears when a child is stuck.
func TestTriedOfAParentWhoseChildIsStuck(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	parent := owner("", "p", "rule")
	child := owner(parent.ID, "c", "rule")
	take(t, n, parent)
	take(t, n, child)
	n.world.before = failing("release", child.ID)
	must(t, n.Release(t.Context(), []hold.ID{parent.ID}))
	tried(t, n, parent.ID)
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	if n.Retry(child.ID) != 1 {
		t.Error("nothing of the child is tried again")
	}
	must(t, n.Wait(t.Context(), parent.ID))
}
