package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// delegated is an owner whose address a delegate chooses.
func delegated(name, offers string, more ...string) hold.Owner {
	o := owner("", name, append([]string{"lease"}, more...)...)
	o.Holds[0].Spec.(*thing).Offers = offers
	return o
}

func named(name string) hold.Name { return hold.Name{Space: "found", Name: name} }

// A name that only a hold's Acquire can choose belongs to the owner before the next hold is
// acquired. When the owner has gone, the name rests like any other.
func TestDiscoveredName(t *testing.T) {
	n := newNode(t)
	n.rest = time.Hour
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if id, ok := n.ledger.Holder(named("10.0.0.7")); op == "acquire" && h.Spec.Kind() == "wire" && (!ok || id != h.Owner) {
			t.Errorf("the wire is taken, and the address is %q's", id)
		}
		return nil
	}
	o := delegated("pod", "10.0.0.7", "wire")
	take(t, n, o)
	n.restart()
	if rec, _ := n.ledger.Owner(o.ID); !slices.Contains(rec.Names, named("10.0.0.7")) {
		t.Errorf("names after a restart: %v", rec.Names)
	}
	release(t, n, o.ID)
	var taken *ledger.NameTakenError
	if err := n.Take(t.Context(), delegated("next", "10.0.0.7")); !errors.As(err, &taken) || taken.Until.IsZero() {
		t.Errorf("the address is given again: %v, want that it rests", err)
	}
}

// A delegate gives an address twice. The second pod does not get the address, the engine gives
// the second lease back to the delegate, and the first pod is left alone.
func TestNameDiscoveredTwice(t *testing.T) {
	n := newNode(t)
	first := delegated("first", "10.0.0.7", "wire")
	take(t, n, first)
	second := delegated("second", "10.0.0.7", "wire")
	released := make(chan string, 9)
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "release" && h.Owner == second.ID && h.Spec.Kind() == "lease" {
			released <- h.Spec.(*thing).Name
		}
		return nil
	}
	var taken *ledger.NameTakenError
	if err := n.Take(t.Context(), second); !errors.As(err, &taken) || taken.Owner != first.ID {
		t.Errorf("%v, want that the first has it", err)
	}
	must(t, n.Wait(t.Context(), second.ID))
	if name := <-released; name != "10.0.0.7" {
		t.Errorf("released as %q: what was discovered is lost", name)
	}
	if id, _ := n.ledger.Holder(named("10.0.0.7")); id != first.ID || !n.world.has(first.Holds[0]) {
		t.Errorf("the first pod has lost it to %q", id)
	}
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	release(t, n, first.ID)
	wantResidue(t, n, empty)
}

// The program ends after an owner was refused that has another's name, and before its release
// is promised. The next engine does not take the owner for whole: nobody can rely on it.
func TestNameDiscoveredTwiceAndKilled(t *testing.T) {
	n, disk := onDisk(t)
	other, o := delegated("other", "theirs"), delegated("pod", "theirs")
	take(t, n, other)
	disk.FillFor("ledger.releasing") // the promise
	if err := n.Take(t.Context(), o); err == nil {
		t.Fatal("it is taken with another's name")
	}
	n.stop()
	n.start(nil)
	_ = n.Restore(t.Context())
	if err := n.Repair(t.Context(), o.ID); err == nil {
		rec, _ := n.ledger.Owner(o.ID)
		t.Errorf("%v is whole, %+v", rec, rec.Holds[0].Spec)
	}
	if id, _ := n.ledger.Holder(named("theirs")); id != other.ID {
		t.Errorf("the name is %q's, want %s's", id, other.ID)
	}
	release(t, n, o.ID, other.ID)
	wantResidue(t, n, empty)
}

// TestDiscoveredNameFaults lets each operation fail, or be the program's last. A name that
// was discovered belongs to its owner as long as the owner lives, and to nobody afterwards.
func TestDiscoveredNameFaults(t *testing.T) {
	points := fault.Each(t, "", fault.Modes(), 1, 1, func(newPlan func() *fault.Plan) {
		n, plan := bareNode(t), newPlan()
		n.start(plan.Decorate)
		o := delegated("pod", "10.0.0.7", "wire")
		err := n.Take(t.Context(), o)
		plan.Heal()
		if plan.Mode.Kill() && plan.Surfaced() != "" {
			n.restart()
		}
		rec, there := n.ledger.Owner(o.ID)
		if there && rec.Wanted() && !n.Doomed(o.ID) && (err == nil || plan.Mode.Kill()) && !slices.Contains(rec.Names, named("10.0.0.7")) {
			t.Errorf("the owner stands without its name: %v, %v", rec, err)
		}
		if there {
			release(t, n, o.ID)
		}
		if id, ok := n.ledger.Holder(named("10.0.0.7")); ok {
			t.Errorf("%s still has the name", id)
		}
		wantResidue(t, n, empty)
		n.stop()
	})
	t.Logf("fault points covered: %d; residue: 0", points)
}

// A name passes from one owner to another in one commit, and needs no rest: an address
// of a block that another owner keeps from now on.
func TestNamesPass(t *testing.T) {
	n := newNodeOf(t, nil, func(*engine.Options) {})
	n.rest = time.Hour
	n.restart()
	from, to := owner("", "from", "wire"), owner("", "to", "rule")
	from.Names = append(from.Names, named("10.0.0.7"))
	take(t, n, from)
	must(t, n.Take(t.Context(), to, ledger.Pass(from.ID, to.ID, named("10.0.0.7"))))
	for _, when := range []string{"passed", "after a restart"} {
		if id, _ := n.ledger.Holder(named("10.0.0.7")); id != to.ID {
			t.Errorf("%s: it is %q's", when, id)
		}
		n.restart()
	}
	release(t, n, from.ID)
	if id, _ := n.ledger.Holder(named("10.0.0.7")); id != to.ID {
		t.Errorf("it went with its former owner to %q", id)
	}
	release(t, n, to.ID)
	if r := n.ledger.Resting(); len(r) != 3 {
		t.Errorf("resting: %v, want all three names", r)
	}
}
