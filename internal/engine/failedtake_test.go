package engine_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// If the undo of a failed Take cannot be written, the Take has failed all the same: nothing
// repairs the owner, and the promise of its release is owed and tried again.
func TestFailedTakeStaysDoomed(t *testing.T) {
	full := &fault.Disk{}
	n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		full.Ledger = l
		return full, ks
	}, hourly)
	o := owner("", "a", "wire", "rule")
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "acquire" && h.Spec.Kind() == "rule" {
			full.Fill(1) // the disk is full as the undo is written
			return errors.New("no")
		}
		return nil
	}
	if err := n.Take(t.Context(), o); err == nil {
		t.Fatal("taken")
	}
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "acquire" {
			t.Errorf("%s is taken again, though Take has failed", h.Spec)
		}
		return nil
	}
	for range 2 {
		n.Sweep(t.Context())
	}
	if err := n.Repair(t.Context(), o.ID); !errors.Is(err, engine.ErrOvertaken) || !n.Doomed(o.ID) {
		t.Errorf("Repair: %v, doomed %t", err, n.Doomed(o.ID))
	}
	if owed := owes(t, n, o.ID, 1); owed.Hold.Spec != nil || owed.Err == nil {
		t.Errorf("owed: %+v", owed)
	}
	full.Clear()
	if n.Retry(o.ID) != 1 {
		t.Error("nothing is tried again")
	}
	nettest.Eventually(t, "it is gone", func() bool { _, there := n.ledger.Owner(o.ID); return !there })
	if n.Doomed(o.ID) || len(n.Owed("")) > 0 {
		t.Errorf("doomed: %t, owed: %v", n.Doomed(o.ID), n.Owed(""))
	}
	wantResidue(t, n, empty)
}

// If the first commit of a Take is written and returns an error all the same, the owner has
// begun. The Take undoes that, and must not return a RefusedError: the caller would give
// the names to somebody else.
func TestTakeBegunByAFailedCommit(t *testing.T) {
	deaf := &deafLedger{}
	n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		deaf.Ledger = l
		return deaf, ks
	})
	o := owner("", "a", "wire")
	deaf.next.Store(true)
	err := n.Take(t.Context(), o)
	var refused *engine.RefusedError
	if !errors.Is(err, errUnheard) || errors.As(err, &refused) {
		t.Errorf("Take: %v", err)
	}
	nettest.Eventually(t, "it is gone", func() bool { _, there := n.ledger.Owner(o.ID); return !there })
	must(t, n.Take(t.Context(), o))
	if err := n.Take(t.Context(), o); !errors.As(err, &refused) || !errors.Is(err, ledger.ErrExists) {
		t.Errorf("Take of who is there: %v", err)
	}
	if now, there := n.ledger.Owner(o.ID); !there || !now.Wanted() || n.Doomed(o.ID) {
		t.Errorf("who was there is %+v", now)
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}

// deafLedger makes one commit, and says that it has failed.
type deafLedger struct {
	engine.Ledger
	next atomic.Bool
}

var errUnheard = errors.New("the answer was lost")

func (l *deafLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	err := l.Ledger.Commit(ctx, ops...)
	if l.next.CompareAndSwap(true, false) {
		return errUnheard
	}
	return err
}

// The undo of a failed Take cannot be written, and somebody else releases the owner
// meanwhile. Then the undo has nothing left to do, and the owner owes nothing.
func TestDoomEndsWithItsOwner(t *testing.T) {
	slow := &slowLedger{reached: make(chan struct{}), let: make(chan struct{})}
	n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		slow.Ledger = l
		return slow, ks
	})
	o := owner("", "a", "rule")
	n.world.before = func(_ context.Context, op string, _ hold.Hold) error {
		if op == "acquire" {
			slow.next.Store(true) // the undo's promise
			return errors.New("no")
		}
		return nil
	}
	failed := make(chan error)
	go func() { failed <- n.Take(context.Background(), o) }()
	<-slow.reached
	release(t, n, o.ID)
	close(slow.let)
	if err := <-failed; err == nil {
		t.Error("taken")
	}
	nettest.Eventually(t, "nothing is owed", func() bool { return !n.Doomed(o.ID) && len(n.Owed("")) == 0 })
	wantResidue(t, n, empty)
}

// slowLedger lets one commit wait, and then refuses it.
type slowLedger struct {
	engine.Ledger
	next         atomic.Bool
	reached, let chan struct{}
}

func (l *slowLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	if !l.next.CompareAndSwap(true, false) {
		return l.Ledger.Commit(ctx, ops...)
	}
	close(l.reached)
	<-l.let
	return errors.New("disk full")
}

// The release knows what an Acquire has discovered, also if the Acquire itself or a later
// one has failed, or if the ledger cannot be written.
func TestDiscoveryOutlivesAFailure(t *testing.T) {
	for _, how := range []string{"a later hold fails", "the acquire fails", "the ledger is full"} {
		t.Run(how, func(t *testing.T) {
			full := &fault.Disk{}
			n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
				full.Ledger = l
				acquire := ks[0].Acquire
				ks[0].Acquire = func(ctx context.Context, h hold.Hold) error {
					err := acquire(ctx, h)
					switch how {
					case "the acquire fails":
						err = errors.New("it was made, and is not ready in time")
					case "the ledger is full":
						full.Fill(1)
					}
					return err
				}
				return full, ks
			})
			released := make(chan string, 10)
			n.world.before = func(_ context.Context, op string, h hold.Hold) error {
				if op == "acquire" && h.Spec.Kind() == "rule" {
					return errors.New("no")
				}
				if op == "release" && h.Spec.Kind() == "lease" {
					released <- h.Spec.(*thing).Seen
				}
				return nil
			}
			o := owner("", "a", "lease", "rule")
			if err := n.Take(t.Context(), o); err == nil {
				t.Fatal("taken")
			}
			full.Clear()
			n.Retry()
			if seen := <-released; seen != "leased" {
				t.Errorf("the release of the lease knows of %q", seen)
			}
			nettest.Eventually(t, "it is gone", func() bool { return n.world.residue() == empty && len(n.ledger.Owners()) == 0 })
		})
	}
}

// A runtime repeats a DEL of a pod while the pod's ADD hangs.
func TestRepeatedReleasesCostNoGoroutine(t *testing.T) {
	n := newNode(t)
	reached, let := make(chan struct{}), make(chan struct{})
	n.world.before = func(_ context.Context, op string, _ hold.Hold) error {
		if op == "acquire" {
			close(reached)
			<-let // the kernel hangs, whatever the context says
		}
		return nil
	}
	o := owner("", "a", "rule")
	failed := make(chan error)
	go func() { failed <- n.Take(context.Background(), o) }()
	<-reached
	before := runtime.NumGoroutine()
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Microsecond)
		if err := n.Release(ctx, []hold.ID{o.ID}); err == nil {
			t.Fatal("released")
		}
		cancel()
	}
	if grown := runtime.NumGoroutine() - before; grown > 10 {
		t.Errorf("200 releases of one owner have left %d goroutines", grown)
	}
	close(let)
	if err := <-failed; err == nil {
		t.Error("taken")
	}
	must(t, n.Wait(t.Context(), o.ID))
}

// GC asks for another try, and answers with the outcome of that try, not of the one before.
func TestTriedWaitsForTheTryThatWasAskedFor(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	o := owner("", "a", "rule")
	take(t, n, o)
	n.world.before = failing("release", o.ID)
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	tried(t, n, o.ID)
	reached, let := make(chan struct{}), make(chan struct{})
	n.world.before = func(context.Context, string, hold.Hold) error {
		close(reached)
		<-let
		return nil
	}
	n.Retry(o.ID)
	<-reached
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := n.Tried(ctx, o.ID); err == nil {
		t.Error("Tried answers while the try is under way")
	}
	close(let)
	tried(t, n, o.ID)
	if owed := n.Owed(o.ID); len(owed) > 0 {
		t.Errorf("owed: %v", owed)
	}
}
