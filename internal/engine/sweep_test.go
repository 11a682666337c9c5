package engine_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

func findings(n *node) string {
	s := ""
	for _, f := range n.Audit(context.Background()).Findings {
		s += string(f.Type) + " " + f.Hold.Spec.String() + "\n"
	}
	return s
}

func TestSweepMendsDrift(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire", "rule")
	take(t, n, o)
	n.world.set(func() { delete(n.world.things, "rule "+string(o.ID)) })
	if got, want := findings(n), "missing rule "+string(o.ID)+"\n"; got != want {
		t.Errorf("audit: %q, want %q", got, want)
	}
	mustSweep(t, n)
	if got := findings(n); got != "" {
		t.Errorf("audit after the sweep: %q", got)
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}

func TestSweepRemovesOrphansAtTheSecondSighting(t *testing.T) {
	n := newNode(t)
	id := hold.NewID()
	n.world.set(func() { n.world.things["rule "+string(id)] = id })
	for i, want := range []string{"left-over rule " + string(id) + "\n", "left-over rule " + string(id) + "\n", ""} {
		if got := findings(n); got != want {
			t.Errorf("audit before sweep %d: %q, want %q", i+1, got, want)
		}
		mustSweep(t, n)
	}
	wantResidue(t, n, empty)
}

// An owner's release is promised, and the caller that promised it never comes to Depart. The
// next sweep begins the owner's departure.
func TestSweepSendsOnTheirWay(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire", "rule")
	take(t, n, o)
	must(t, n.ledger.Commit(t.Context(), ledger.Releasing(o.ID, time.Now())))
	var once sync.Once
	given := make(chan struct{})
	n.world.before = func(_ context.Context, op string, _ hold.Hold) error {
		if op == "release" {
			once.Do(func() { close(given) })
		}
		return nil
	}
	mustSweep(t, n)
	select {
	case <-given: // before Wait begins the departure itself
	case <-time.After(10 * time.Second):
		t.Fatal("nothing of it is given back")
	}
	must(t, n.Wait(t.Context(), o.ID))
	wantResidue(t, n, empty)
}

// A repair that began before a DEL must not bring back what the DEL cut off.
func TestRepairDoesNotUndoARelease(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire", "rule")
	take(t, n, o)
	n.world.set(func() { delete(n.world.things, "rule "+string(o.ID)) })
	reached, let := make(chan struct{}), make(chan struct{})
	n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
		if op == "acquire" {
			close(reached)
			<-ctx.Done()
			<-let
			return ctx.Err()
		}
		return nil
	}
	swept := make(chan struct{})
	go func() { n.Sweep(context.Background()); close(swept) }()
	<-reached
	released := make(chan error)
	go func() { released <- n.Release(context.Background(), []hold.ID{o.ID}) }()
	close(let)
	must(t, <-released)
	<-swept
	must(t, n.Wait(t.Context(), o.ID))
	mustSweep(t, n)
	wantResidue(t, n, empty)
}

// If a kind returns no answer for a thing without an owner, that is an error, and does not
// end the program.
func TestStrangerWithoutAnswer(t *testing.T) {
	n := newNode(t)
	n.stop()
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		for i := range ks {
			ks[i].Release = func(context.Context, []hold.Hold) []error { return nil }
		}
		return l, ks
	})
	n.world.set(func() { n.world.things["rule stray"] = hold.NewID() })
	mustSweep(t, n)
	if _, err := n.Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "0 answers for 1 holds") {
		t.Errorf("the sweep says %v", err)
	}
}

// A sweep does not wait for a kind that does not end the release of a thing without an owner.
// Holds of owners are released beside that call, however many sweeps there are.
func TestStrangerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			for i := range ks {
				ks[i].Flight = 4
			}
			return l, ks
		})
		free := make(chan struct{})
		defer close(free)
		n.world.set(func() { n.world.things["rule stray"] = hold.NewID() })
		n.world.before = func(_ context.Context, op string, h hold.Hold) error {
			if op == "release" && h.Spec.String() == "rule stray" {
				<-free
			}
			return nil
		}
		for range 8 {
			_, _ = n.Sweep(t.Context())
		}
		o := owner("", "pod", "rule") // has a place in the line all the same
		take(t, n, o)
		release(t, n, o.ID)
	})
}
