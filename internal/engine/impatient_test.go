package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// hangRepair lets a repair of o hang in its kind until let is closed, and calls stopped when
// a release asks the repair to stop.
func hangRepair(n *node, o hold.Owner, stopped func()) (let chan struct{}, repaired chan error) {
	let, repaired = make(chan struct{}), make(chan error, 1)
	reached := make(chan struct{})
	n.world.set(func() {
		delete(n.world.things, "wire "+string(o.ID))
		delete(n.world.users, "a")
	})
	n.world.before = func(ctx context.Context, op string, _ hold.Hold) error {
		if op == "acquire" {
			close(reached)
			<-ctx.Done()
			stopped()
			<-let
		}
		return nil
	}
	go func() { repaired <- n.Repair(context.Background(), o.ID) }()
	<-reached
	return let, repaired
}

// The promise is written, and then the caller's time is up. The owner goes all the same, and
// nobody has to ask again. In containerd #5438 and #5569 the clean-up had the request's
// context, which had ended.
func TestPromiseOutlivesItsAsker(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire")
	take(t, n, o)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	let, repaired := hangRepair(n, o, cancel)
	if err := n.Release(ctx, []hold.ID{o.ID}); err == nil || !strings.Contains(err.Error(), "has not stopped yet") {
		t.Errorf("Release: %v, want that the repair has not stopped yet", err)
	}
	close(let)
	if err := <-repaired; err != nil {
		t.Errorf("Repair: %v", err)
	}
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(0) {
		if _, ok := n.ledger.Owner(o.ID); !ok {
			wantResidue(t, n, empty)
			return
		}
	}
	t.Error("the owner is releasing, and nobody releases it")
}

// Between the promise and the cut an owner does not count as gone.
func TestWaitWaitsForWhoIsOnlyPromised(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire")
	take(t, n, o)
	promised := make(chan struct{})
	let, _ := hangRepair(n, o, func() { close(promised) })
	released := make(chan error, 1)
	go func() { released <- n.Release(t.Context(), []hold.ID{o.ID}) }()
	<-promised
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := n.Wait(ctx, o.ID); err == nil {
		t.Error("Wait says that the owner is gone")
	}
	close(let)
	if err := <-released; err != nil {
		t.Error(err)
	}
	must(t, n.Wait(t.Context(), o.ID))
	wantResidue(t, n, empty)
}

// If a release comes in the very moment of the last acquire, its event comes after that of
// the Take.
func TestEventsOfATakeComeBeforeThoseOfItsRelease(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire")
	n.stop()
	done := make(chan struct{})
	n.start(nil, func(opt *engine.Options) {
		tell := opt.Event
		opt.Event = func(e engine.Event) {
			if e.Type == "attached" {
				go func() { defer close(done); _ = n.Release(context.Background(), []hold.ID{o.ID}) }()
				for !isLeaving(n, o.ID) {
					time.Sleep(0)
				}
			}
			tell(e)
		}
	})
	take(t, n, o)
	<-done
	must(t, n.Wait(t.Context(), o.ID))
	if got := n.eventTypes(o.ID); got != "attaching attached releasing released" {
		t.Errorf("events: %s", got)
	}
}

func isLeaving(n *node, id hold.ID) bool {
	o, ok := n.ledger.Owner(id)
	return !ok || !o.Wanted()
}

// If the cut of a pod has failed, its traces are not released: the pod's traffic would leave new
// traces at once.
func TestNothingElseGoesWhileAnOwnerIsReachable(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "rule", "wire")
	take(t, n, o)
	tries := 0
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "cut" {
			return errors.New("no cut")
		}
		if tries++; op == "release" && h.Spec.Kind() == "wire" && tries < 4 {
			return errors.New("busy")
		}
		return nil
	}
	if err := n.Release(t.Context(), []hold.ID{o.ID}); err == nil {
		t.Error("Release hides that the cut failed")
	}
	must(t, n.Wait(t.Context(), o.ID))
	log := n.world.done()
	if want := []string{"release wire " + string(o.ID), "release rule " + string(o.ID)}; !slices.Equal(log[2:], want) {
		t.Errorf("released %v, want %v", log[2:], want)
	}
}
