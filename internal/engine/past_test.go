package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// past returns what the last Released event of an owner says.
func (n *node) past(id hold.ID) *engine.Past {
	n.t.Helper()
	var p *engine.Past
	nettest.Eventually(n.t, "the owner to be released", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, e := range n.events {
			if e.Owner.ID == id && e.Type == engine.Released {
				p = e.Past
			}
		}
		return p != nil
	})
	return p
}

// The event that an owner is released says who asked first, when it was cut off, when each hold
// went, and what went wrong before.
func TestPast(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	o := owner("", "a", "wire", "rule")
	take(t, n, o)
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "cut" || op == "release" && h.Spec.Kind() == "wire" {
			return errors.New("device busy")
		}
		return nil
	}
	begun := time.Now()
	earlier := hold.Earlier{Asked: begun.Add(-time.Hour), Cut: begun.Add(-time.Minute)}
	ctx := engine.AskedEarlier(engine.AskedBy(t.Context(), "first"), func(id hold.ID) hold.Earlier {
		if id != o.ID {
			t.Errorf("asked about %s", id)
		}
		return earlier
	})
	if err := n.Release(ctx, []hold.ID{o.ID}); !errors.Is(err, engine.ErrReachable) {
		t.Fatalf("a cut that fails: %v", err)
	}
	for range 2 {
		tried(t, n, o.ID)
		n.Retry(o.ID)
	}
	tried(t, n, o.ID)
	p, leaving := n.Past(o.ID)
	if !leaving || p.Asker != "first" || !p.Cut.IsZero() || p.CutErr == nil || !p.Holds[0].Released.IsZero() || p.Holds[0].Trouble == nil || p.Holds[0].Trouble.Tries != 3 {
		t.Errorf("while it is owed: %v, %+v", leaving, p)
	}
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	must(t, n.Release(engine.AskedEarlier(engine.AskedBy(t.Context(), "second"), func(hold.ID) hold.Earlier { return hold.Earlier{Asked: begun} }), []hold.ID{o.ID}))
	n.Retry(o.ID)
	p = *n.past(o.ID)
	if p.Asker != "first" || p.Earlier != earlier || p.Failed != nil || p.CutErr == nil || p.Cut.Before(begun) || p.Forget != nil || len(p.Holds) != 2 {
		t.Errorf("at its end: %+v", p)
	}
	wire, rule := p.Holds[0], p.Holds[1]
	if wire.Released.Before(p.Cut) || wire.Trouble.Tries != 3 || wire.Trouble.Err == nil || wire.Trouble.Since.Before(begun) || wire.Trouble.Since.After(p.Cut) ||
		rule.Released.Before(p.Cut) || rule.Trouble != nil {
		t.Errorf("of its holds: %+v, %+v", wire, rule)
	}
	if _, leaving := n.Past(o.ID); leaving {
		t.Error("it is still being released")
	}

	// None of these facts appear in the event of another owner, and a release that an earlier
	// run promised has no asker.
	n.events = nil
	o.Names[0].Name = "b"
	take(t, n, o)
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	if p := n.past(o.ID); p.Asker != "" || p.Earlier != (hold.Earlier{}) || p.CutErr != nil || p.Holds[0].Trouble != nil {
		t.Errorf("of another owner: %+v", p)
	}
	must(t, n.Wait(t.Context(), o.ID))
	n.events = nil
	o.Names[0].Name = "c"
	take(t, n, o)
	n.world.before = failing("release")
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	n.restart()
	must(t, n.Restore(t.Context()))
	must(t, n.Release(engine.AskedBy(t.Context(), "third"), []hold.ID{o.ID}))
	if p := n.past(o.ID); p.Asker != "" || p.CutErr != nil {
		t.Errorf("promised by an earlier run: %+v", p)
	}
}

// The event of an owner that could not be taken says why.
func TestPastOfFailedTake(t *testing.T) {
	n := newNode(t)
	n.world.before = on("acquire", func(_ context.Context, h hold.Hold) error {
		if h.Spec.Kind() == "rule" {
			return errors.New("no rule")
		}
		return nil
	})
	o := owner("", "a", "wire", "rule")
	if err := n.Take(t.Context(), o); err == nil {
		t.Fatal("taken")
	}
	if p := n.past(o.ID); p.Asker != engine.AskerFailure || p.Failed == nil || p.Cut.IsZero() {
		t.Errorf("a Take that failed: %+v", p)
	}
}
