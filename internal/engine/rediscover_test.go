package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// A program that ends between a discovery and its commit leaves a hold that is there, and a
// record that lacks what was discovered. The next program has to discover it again and write
// it down, because nobody else does.
func TestRestoreWritesDownWhatIsDiscovered(t *testing.T) {
	n := newNode(t)
	n.stop()
	plan := fault.New(3, fault.KillBefore) // begin, acquire, and not the update
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) { return plan.Decorate(l, ks) })
	o := owner("", "a", "lease")
	if err := n.Take(context.Background(), o); err == nil {
		t.Fatalf("the fault did not surface: %q", plan.Surfaced())
	}
	n.restart()
	rec, ok := n.ledger.Owner(o.ID)
	if !ok || rec.Holds[0].Spec.(*thing).Seen != "leased" {
		t.Errorf("after a restart the ledger has %v", rec)
	}
	n.restart()
	if rec, _ := n.ledger.Owner(o.ID); rec.Holds[0].Spec.(*thing).Seen != "leased" {
		t.Errorf("it was not written down: %v", rec)
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}

// leaseOf is an owner's first lease.
func leaseOf(o hold.Owner) (hold.Hold, *thing) {
	h, _ := o.Find("lease")
	return h, h.Spec.(*thing)
}

// loseLease has the world lose an owner's lease, and offer another name for it.
func (n *node) loseLease(o hold.Owner, offers string) {
	h, _ := leaseOf(o)
	n.world.set(func() { delete(n.world.things, h.Spec.String()) })
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if s := h.Spec.(*thing); s.K == "lease" && op == "acquire" && h.Owner == o.ID {
			s.Offers = offers
		}
		return nil
	}
}

// A lease is lost, and taken again under a name that another owner has. The engine gives the lease
// back, and audits say that the lease is missing until it is taken again under a free name.
func TestRediscoversAnothersName(t *testing.T) {
	n := newNode(t)
	other, o := delegated("other", "theirs"), delegated("pod", "first", "rule")
	take(t, n, other)
	take(t, n, o)
	n.loseLease(o, "theirs")
	var taken *ledger.NameTakenError
	if _, err := n.Sweep(t.Context()); !errors.As(err, &taken) {
		t.Errorf("the sweep says %v", err)
	}
	nettest.Eventually(t, "the lease to be given back", func() bool { return len(n.ledger.Owners()) == 2 })
	if got, want := findings(n), "missing lease "; !strings.HasPrefix(got, want) {
		t.Errorf("the audit finds %q, want %q", got, want)
	}
	if id, _ := n.ledger.Holder(named("theirs")); id != other.ID {
		t.Errorf("the name is %q's", id)
	}
	n.loseLease(o, "free")
	mustSweep(t, n)
	rec, _ := n.ledger.Owner(o.ID)
	if _, lease := leaseOf(rec); lease.Name != "free" || !slices.Contains(rec.Names, named("free")) || findings(n) != "" {
		t.Errorf("the lease is %+v, the names %v; the audit finds %q", lease, rec.Names, findings(n))
	}
	release(t, n, o.ID, other.ID)
	wantResidue(t, n, empty)
}

// A lease is taken again while the disk is full. The next sweep, or the next change of the
// owner, first writes down what was discovered, with its name.
func TestWritesDownLater(t *testing.T) {
	later := map[string]func(*node, hold.ID) error{
		"sweep": func(n *node, _ hold.ID) error {
			_, err := n.Sweep(context.Background())
			return err
		},
		"change": func(n *node, id hold.ID) error {
			_, err := n.Change(context.Background(), id, func(o *hold.Owner) error {
				o.Meta = json.RawMessage("{}")
				return nil
			})
			return err
		},
	}
	for name, do := range later {
		t.Run(name, func(t *testing.T) {
			n, disk := onDisk(t)
			o := delegated("pod", "first", "rule")
			take(t, n, o)
			disk.Fill(1)
			n.loseLease(o, "second")
			if _, err := n.Sweep(t.Context()); err == nil {
				t.Error("the disk is full, and the sweep says nothing")
			}
			disk.Clear()
			if err := do(n, o.ID); err != nil {
				t.Error(err)
			}
			rec, _ := n.ledger.Owner(o.ID)
			if _, lease := leaseOf(rec); lease.Name != "second" || !slices.Contains(rec.Names, named("second")) {
				t.Errorf("the lease is %+v, the names %v", lease, rec.Names)
			}
			release(t, n, o.ID)
			wantResidue(t, n, empty)
		})
	}
}

// A block may stand for a pod after the block's release was promised, and its lease may be lost
// and taken again meanwhile. At its end the engine gives back the lease that the block has
// then.
func TestReleasesWhatWasFoundLast(t *testing.T) {
	n := newNode(t)
	block := delegated("block", "first", "block")
	pod := onto(owner("", "pod", "wire"), block)
	take(t, n, block)
	take(t, n, pod)
	must(t, n.Release(t.Context(), []hold.ID{block.ID}))
	n.loseLease(block, "second")
	mustSweep(t, n)
	var released string
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if s := h.Spec.(*thing); s.K == "lease" && op == "release" {
			n.world.set(func() { released = s.Name })
		}
		return nil
	}
	release(t, n, pod.ID, block.ID)
	if released != "second" {
		t.Errorf("%q is released", released)
	}
	wantResidue(t, n, empty)
}

// A change has gained a lease under another owner's name, and the change's rollback could not be
// written. The failed rollback does not keep the owner's other holds from being taken again.
func TestRediscoversBesideRefusedGain(t *testing.T) {
	n, disk := onDisk(t)
	other := delegated("other", "theirs")
	o := delegated("pod", "first", "rule")
	take(t, n, other)
	take(t, n, o)
	disk.Fill(3) // the change is announced and the discovery is written; the third commit fails
	_, err := n.Change(t.Context(), o.ID, func(o *hold.Owner) error {
		o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: &thing{K: "lease", N: "more-" + string(o.ID), Offers: "theirs"}})
		return nil
	})
	disk.Clear()
	if rec, _ := n.ledger.Owner(o.ID); err == nil || rec.Before == nil {
		t.Fatalf("the change says %v, and is rolled back: %v", err, rec)
	}
	n.loseLease(o, "second")
	told := len(n.events)
	mustSweep(t, n)
	if n := len(n.events) - told; n > 20 {
		t.Errorf("%d events", n)
	}
	rec, _ := n.ledger.Owner(o.ID)
	if _, lease := leaseOf(rec); rec.Before != nil || lease.Name != "second" || !slices.Contains(rec.Names, named("second")) {
		t.Errorf("%v, %+v", rec, lease)
	}
	release(t, n, o.ID, other.ID)
	wantResidue(t, n, empty)
}
