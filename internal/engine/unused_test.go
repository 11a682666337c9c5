package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// A Take fails. The owner's names are free at once if nobody can have reached the owner, and
// rest if that is not known.
func TestNamesOfAFailedTake(t *testing.T) {
	idle := hold.Unused(errors.New("no room in the pod"))
	for _, tt := range []struct {
		name   string
		holds  []string
		at     string // the kind whose Acquire fails
		err    error
		rested bool
	}{
		{"nobody could use the wire", []string{"wire"}, "wire", idle, false},
		{"behind a lease, which nobody is reached by", []string{"lease", "wire", "rule"}, "wire", idle, false},
		{"the kind does not know", []string{"wire"}, "wire", errors.New("no"), true},
		{"a wire before it is there", []string{"wire", "rule"}, "rule", idle, true},
		{"nobody is reached by a rule", []string{"rule", "wire"}, "rule", idle, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNodeOf(t, nil)
			n.rest = time.Hour
			n.world.before = on("acquire", func(_ context.Context, h hold.Hold) error {
				if h.Spec.Kind() == tt.at {
					return tt.err
				}
				return nil
			})
			o := owner("", "a", tt.holds...)
			if err := n.Take(t.Context(), o); err == nil {
				t.Fatal("taken")
			}
			must(t, n.Wait(t.Context(), o.ID))
			wantResting(t, n, tt.rested)
		})
	}
}

// The engine ends before the release of an owner whose names were not used is promised, or
// before it has ended. The next engine does not know, and lets the names rest.
func TestUnusedNamesRestBehindACrash(t *testing.T) {
	for name, promised := range map[string]bool{"before the promise": false, "before the end": true} {
		t.Run(name, func(t *testing.T) {
			full := &fault.Disk{}
			n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
				full.Ledger = l
				return full, ks
			}, hourly)
			n.rest = time.Hour
			o := owner("", "a", "wire")
			n.world.before = func(_ context.Context, op string, h hold.Hold) error {
				switch {
				case op == "acquire" && !promised:
					full.Fill(1) // the promise
					return hold.ErrUnused
				case op == "acquire":
					return hold.ErrUnused
				case op == "release":
					return errors.New("busy")
				}
				return nil
			}
			if err := n.Take(t.Context(), o); err == nil {
				t.Fatal("taken")
			}
			if now, there := n.ledger.Owner(o.ID); !there || now.Wanted() == promised {
				t.Fatalf("the owner is there: %t, %+v", there, now)
			}
			if promised {
				tried(t, n, o.ID) // Take may have answered first, and the release would end well
			}
			n.world.set(func() { n.world.before = func(context.Context, string, hold.Hold) error { return nil } })
			n.restart()
			release(t, n, o.ID)
			wantResting(t, n, true)
		})
	}
}

// wantResting checks whether the name a rests, and can be claimed if it does not.
func wantResting(t *testing.T, n *node, rests bool) {
	t.Helper()
	n.world.set(func() { n.world.before = func(context.Context, string, hold.Hold) error { return nil } })
	next := owner("", "a", "wire")
	var taken *ledger.NameTakenError
	err := n.Take(t.Context(), next)
	if rests != errors.As(err, &taken) || !rests && err != nil {
		t.Errorf("the name rests: %v, want %t", err, rests)
	}
	if err == nil {
		release(t, n, next.ID)
	}
	nettest.Eventually(t, "nothing is left", func() bool { return len(n.ledger.Owners()) == 0 })
	wantResidue(t, n, empty)
}
