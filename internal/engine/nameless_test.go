package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// nameless makes a kind whose things do not say who owns them, as a pool's route does not:
// an owner that takes a thing which is there has it, and an owner that releases it removes
// it.
func nameless(w *world, kind string) decorate {
	return func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		ks = slices.Clone(ks)
		k := &ks[slices.IndexFunc(ks, func(k hold.Kind) bool { return k.Name() == kind })]
		change := func(op string, h hold.Hold, f func(name string)) error {
			return w.do(context.Background(), op, h, func(s *thing) error { f(s.String()); return nil })
		}
		k.Acquire = func(_ context.Context, h hold.Hold) error {
			return change("acquire", h, func(name string) { w.things[name] = "" })
		}
		k.Verify = hold.VerifyEach(func(_ context.Context, h hold.Hold) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if _, there := w.things[h.Spec.String()]; !there {
				return fmt.Errorf("%s: %w", h.Spec, hold.ErrGone)
			}
			return nil
		})
		k.Release = hold.Each(func(_ context.Context, h hold.Hold) error {
			return change("release", h, func(name string) { delete(w.things, name) })
		})
		return l, ks
	}
}

// shared makes an owner of one thing of a name that others may have had.
func shared(kind, name string) hold.Owner {
	o := owner("", name)
	o.Holds = []hold.Hold{{Owner: o.ID, Spec: &thing{K: kind, N: name}}}
	return o
}

// An owner takes a thing that had no owner, while a sweep is about to remove the thing. The thing
// stays, also if it is taken in the very moment of the removal.
func TestSweepRemovesNothingThatIsTakenMeanwhile(t *testing.T) {
	for _, when := range []string{"before", "in the moment"} {
		t.Run(when, func(t *testing.T) {
			n := newNode(t)
			n.stop()
			n.start(nameless(n.world, "rule"))
			n.world.set(func() { n.world.things["rule a"] = "" })
			other := owner("", "other", "wire")
			take(t, n, other)
			mustSweep(t, n) // the first sighting
			o := shared("rule", "a")
			n.world.set(func() { delete(n.world.things, "wire "+string(other.ID)); delete(n.world.users, "other") })
			var once sync.Once
			n.world.before = func(_ context.Context, op string, h hold.Hold) error {
				if op == "acquire" && h.Owner == other.ID && when == "before" || op == "release" && when != "before" {
					once.Do(func() { take(t, n, o) })
				}
				return nil
			}
			mustSweep(t, n)
			if err := n.Verify(t.Context(), o); err != nil {
				t.Errorf("after the sweep: %v", err)
			}
			release(t, n, o.ID, other.ID)
			wantResidue(t, n, empty)
		})
	}
}

// lateLedger answers one question for an owner after it has been forgotten.
type lateLedger struct {
	engine.Ledger
	once   sync.Once
	id     hold.ID
	forget func()
}

func (l *lateLedger) Owner(id hold.ID) (hold.Owner, bool) {
	o, ok := l.Ledger.Owner(id)
	if ok && id == l.id {
		l.once.Do(l.forget)
	}
	return o, ok
}

// A repeated release of an owner that is being forgotten at this moment does nothing: the
// owner's things may be a successor's by now.
func TestReleaseOfWhoIsBeingForgotten(t *testing.T) {
	n := newNode(t)
	n.stop()
	late := &lateLedger{}
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		late.Ledger, ks = nameless(n.world, "rule")(l, ks)
		return late, ks
	})
	former, heir := shared("rule", "a"), shared("rule", "a")
	take(t, n, former)
	let := make(chan struct{})
	n.world.before = hanging(let, "release")
	must(t, n.Release(t.Context(), []hold.ID{former.ID}))
	took := make(chan error, 1)
	late.id, late.forget = former.ID, func() {
		close(let)
		go func() {
			err := n.Wait(context.Background(), former.ID)
			took <- errors.Join(err, n.Take(context.Background(), heir))
		}()
		select { // the owner is gone before the answer, if it can be
		case err := <-took:
			took <- err
		case <-time.After(200 * time.Millisecond):
		}
	}
	must(t, n.Depart(t.Context(), []hold.ID{former.ID}))
	late.once.Do(late.forget) // if nobody has asked the ledger
	must(t, <-took)
	must(t, n.Wait(t.Context(), former.ID))
	if err := n.Verify(t.Context(), heir); err != nil {
		t.Errorf("the heir: %v", err)
	}
	if got := n.eventTypes(former.ID); got != "attaching attached releasing released" {
		t.Errorf("events: %s", got)
	}
	release(t, n, heir.ID)
	wantResidue(t, n, empty)
}
