package engine_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// A process that has ended is not begun again, and is no difference. The engine sends one event of
// that end in each of the engine's lives, and releases the owner like any other.
func TestGoneIsTheEnd(t *testing.T) {
	n := newNode(t)
	o := owner("", "container", "wire", "proc")
	take(t, n, o)
	n.end(o.Holds[1])
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
		if n.endings(o.ID) != told {
			t.Errorf("%s: events %s, want ended %d times", when, n.eventTypes(o.ID), told)
		}
	}
	look("it ended", 1)
	n.restart()
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

// endings is how many events said that something of an owner has ended.
func (n *node) endings(id hold.ID) int {
	types := strings.Fields(n.eventTypes(id))
	return len(slices.DeleteFunc(types, func(typ string) bool { return typ != string(engine.Ended) }))
}

// end lets a process come to its end.
func (n *node) end(h hold.Hold) {
	s := h.Spec.(*thing).String()
	n.world.set(func() {
		n.world.ended[s] = true
		delete(n.world.things, s)
	})
}

// A process that never began has not come to its end: if the engine was killed between the
// commit that begins an owner and Acquire, the next engine begins the process.
func TestNeverBegunIsBegun(t *testing.T) {
	n := newNode(t)
	o := owner("", "container", "wire", "proc")
	must(t, n.Ledger.Commit(t.Context(), ledger.Begin(o)))
	n.restart()
	if !n.world.has(o.Holds[1]) {
		t.Error("what never began is not begun")
	}
	if n.endings(o.ID) > 0 {
		t.Errorf("events %s of what never began", n.eventTypes(o.ID))
	}
	n.end(o.Holds[1])
	n.restart()
	if n.endings(o.ID) != 1 {
		t.Errorf("events %s of what has ended", n.eventTypes(o.ID))
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}

// A process that is gone because it was released, or that is not there yet, has not come to
// its end: the engine sends no event.
func TestReleasedIsNotEnded(t *testing.T) {
	meanwhile, seen := func() {}, func() {}
	n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		verify := ks[5].Verify
		ks[5].Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
			meanwhile()
			defer seen()
			return verify(ctx, look, hs)
		}
		return l, ks
	})
	released, changed, taken := owner("", "released", "proc"), owner("", "changed", "proc"), owner("", "taken", "proc")
	take(t, n, released)
	take(t, n, changed)
	meanwhile = sync.OnceFunc(func() { release(t, n, released.ID) })
	must(t, n.Repair(t.Context(), released.ID))
	meanwhile = sync.OnceFunc(func() {
		gone, err := n.Change(t.Context(), changed.ID, func(o *hold.Owner) error { o.Holds = nil; return nil })
		if err != nil || n.Wait(t.Context(), gone) != nil {
			t.Error(err)
		}
	})
	mustSweep(t, n)
	meanwhile = func() {}
	var repair sync.WaitGroup
	untaken := make(chan struct{})
	seen = sync.OnceFunc(func() { close(untaken) })
	n.world.before = on("acquire", func(ctx context.Context, _ hold.Hold) error {
		repair.Go(func() {
			if err := n.Repair(t.Context(), taken.ID); err != nil {
				t.Error(err)
			}
		})
		<-untaken
		return nil
	})
	take(t, n, taken)
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	repair.Wait()
	for _, o := range []hold.Owner{released, changed, taken} {
		if n.endings(o.ID) > 0 {
			t.Errorf("%s: events %s", o, n.eventTypes(o.ID))
		}
	}
}

// If a process is begun anew in the place of one that has ended, and ends as well, the
// engine sends another event.
func TestEndsAgain(t *testing.T) {
	n := newNode(t)
	o := owner("", "container", "wire", "proc")
	take(t, n, o)
	for i := 1; i < 3; i++ {
		n.end(o.Holds[1])
		must(t, n.Repair(t.Context(), o.ID))
		if n.endings(o.ID) != i {
			t.Errorf("end %d: events %s", i, n.eventTypes(o.ID))
		}
		n.world.set(func() { clear(n.world.ended) })
		for _, holds := range [][]hold.Hold{o.Holds[:1], o.Holds} {
			if _, err := n.Change(t.Context(), o.ID, func(o *hold.Owner) error { o.Holds = holds; return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}
