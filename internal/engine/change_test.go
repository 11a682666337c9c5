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
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

func plain(name string) hold.Name { return hold.Name{Space: "n", Name: name} }

// plug is a change: an owner gets a wire and a lease with a name, and loses its rule and
// one of its names.
func plug(o *hold.Owner) error {
	id := o.ID
	o.Holds = slices.DeleteFunc(o.Holds, func(h hold.Hold) bool { return h.Spec.Kind() == "rule" })
	o.Names = slices.DeleteFunc(o.Names, func(n hold.Name) bool { return n.Name == "old" })
	o.Names = append(o.Names, plain("new"))
	o.Holds = append(o.Holds,
		hold.Hold{Owner: id, Spec: &thing{K: "lease", N: "hot-" + string(id), Offers: "given"}},
		hold.Hold{Owner: id, Spec: &thing{K: "wire", N: "hot-" + string(id), Uses: "new"}})
	return nil
}

// pluggable is an owner that plug can change.
func pluggable() hold.Owner {
	o := owner("", "pod", "wire", "rule")
	o.Names = append(o.Names, plain("old"))
	return o
}

// isPlugged reports whether an owner is as plug makes it, and whether it is as it was before.
// Both are false if the owner is in neither state.
func isPlugged(n *node, id hold.ID) (plugged, before bool) {
	o, _ := n.ledger.Owner(id)
	things := 0
	for _, h := range o.Holds {
		if n.world.has(h) {
			things++
		}
	}
	names := map[hold.Name]bool{}
	for _, m := range o.Names {
		if m.Space != "address" { // an address may come with the change
			names[m] = true
		}
	}
	kinds := fmt.Sprint(o.Holds)
	all := things == len(o.Holds) && o.Before == nil && o.Wanted()
	return all && len(o.Holds) == 3 && len(names) == 3 && names[plain("new")] && names[named("given")] && kinds != "",
		all && len(o.Holds) == 2 && len(names) == 2 && names[plain("old")]
}

// A running pod gets an interface and loses one. The gained interface is there and can be used
// before the pod loses anything. The lost interface is cut off, and its name is not free before
// the interface is given back.
func TestChange(t *testing.T) {
	n := newNode(t)
	n.rest = time.Hour
	o := pluggable()
	take(t, n, o)
	let := make(chan struct{})
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "release" {
			if !n.world.has(hold.Hold{Owner: o.ID, Spec: &thing{K: "wire", N: "hot-" + string(o.ID)}}) {
				t.Errorf("%s is released before what is gained is there", h.Spec)
			}
			<-let
		}
		return nil
	}
	gone, err := n.Change(t.Context(), o.ID, plug)
	if err != nil || gone == "" {
		t.Fatalf("%q, %v", gone, err)
	}
	if plugged, _ := isPlugged(n, o.ID); !plugged {
		rec, _ := n.ledger.Owner(o.ID)
		t.Errorf("the owner is %v", rec)
	}
	if id, _ := n.ledger.Holder(plain("old")); id != gone {
		t.Errorf("the lost name is %q's while what was lost is there", id)
	}
	// An owner that gains a thing again waits until the former thing is gone.
	again := make(chan error, 1)
	go func() {
		_, err := n.Change(t.Context(), o.ID, func(o *hold.Owner) error {
			o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: &thing{K: "rule", N: string(o.ID)}})
			return nil
		})
		again <- err
	}()
	select {
	case err := <-again:
		t.Errorf("the lost rule is given again while it is on its way out: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	close(let)
	if err := <-again; err != nil {
		t.Error(err)
	}
	must(t, n.Wait(t.Context(), gone))
	if rec, _ := n.ledger.Owner(o.ID); len(rec.Holds) != 4 || !n.world.has(rec.Holds[3]) {
		t.Errorf("the rule is not there again: %v", rec)
	}
	if rep, err := n.Sweep(t.Context()); err != nil || len(rep.Findings) > 0 {
		t.Errorf("a sweep finds %v, %v", rep.Findings, err)
	}
	n.restart()
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	release(t, n, o.ID)
	wantResidue(t, n, empty)
	if rests := n.ledger.Resting(); len(rests) != 4 {
		t.Errorf("resting: %v, want pod, old, new and given", rests)
	}
}

// TestChangeIsRefused: a change that cannot be made changes nothing.
func TestChangeIsRefused(t *testing.T) {
	n := newNode(t)
	o, other := pluggable(), owner("", "new", "wire")
	take(t, n, o)
	take(t, n, other)
	bad := errors.New("bad")
	for name, test := range map[string]struct {
		change func(*hold.Owner) error
		want   error
	}{
		"error":        {func(*hold.Owner) error { return bad }, bad},
		"taken name":   {plug, &ledger.NameTakenError{Name: plain("new"), Owner: other.ID}},
		"twice":        {func(o *hold.Owner) error { o.Holds = append(o.Holds, o.Holds[0]); return nil }, ledger.ErrInvalid},
		"no spec":      {func(o *hold.Owner) error { o.Holds = append(o.Holds, hold.Hold{}); return nil }, ledger.ErrInvalid},
		"needs":        {func(o *hold.Owner) error { o.Needs = []hold.ID{hold.NewID()}; return nil }, ledger.ErrNeeds},
		"needs itself": {func(o *hold.Owner) error { o.Needs = []hold.ID{o.ID}; return nil }, ledger.ErrInvalid},
	} {
		_, err := n.Change(t.Context(), o.ID, test.change)
		var refused *engine.RefusedError
		var taken *ledger.NameTakenError
		if want, ok := test.want.(*ledger.NameTakenError); ok {
			if !errors.As(err, &taken) || *taken != *want {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		} else if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v is no RefusedError", name, err)
		}
		if _, before := isPlugged(n, o.ID); !before {
			t.Errorf("%s: the owner has changed", name)
		}
	}
	release(t, n, o.ID, other.ID)
	if _, err := n.Change(t.Context(), o.ID, plug); !errors.Is(err, engine.ErrOvertaken) {
		t.Errorf("changing an owner that is gone: %v", err)
	}
	wantResidue(t, n, empty)
}

// A release does not wait for a change under way, and gives back all that the change has
// taken, too.
func TestReleaseOvertakesChange(t *testing.T) {
	n := newNode(t)
	o := pluggable()
	take(t, n, o)
	reached := make(chan struct{})
	n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
		if op == "acquire" && h.Spec.Kind() == "wire" {
			close(reached)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}
	var errChange error
	var change sync.WaitGroup
	change.Go(func() { _, errChange = n.Change(t.Context(), o.ID, plug) })
	<-reached
	release(t, n, o.ID)
	change.Wait()
	if !errors.Is(errChange, engine.ErrOvertaken) {
		t.Errorf("the change says %v", errChange)
	}
	wantResidue(t, n, empty)
	if left := n.ledger.Owners(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestChangeFaults lets each operation of a change fail, or be the program's last, while
// somebody sweeps, releases or changes beside it. Afterwards the owner is in the state before
// the change or in the state after it, and nothing of the other state is left. An address,
// which the change's ops pass to the owner, has the owner that belongs to the present state.
func TestChangeFaults(t *testing.T) {
	points := 0
	beside := map[string]func(*node, hold.ID, ledger.Op){
		"":        func(*node, hold.ID, ledger.Op) {},
		"sweep":   func(n *node, _ hold.ID, _ ledger.Op) { n.Sweep(context.Background()) },
		"release": func(n *node, id hold.ID, _ ledger.Op) { n.Release(context.Background(), []hold.ID{id}) },
		"change":  func(n *node, id hold.ID, op ledger.Op) { n.Change(context.Background(), id, plug, op) },
	}
	for who, run := range beside {
		points += fault.Each(t, "beside a "+who, fault.Modes(), 1, 1, func(newPlan func() *fault.Plan) { changeRun(t, newPlan(), who, run) })
	}
	t.Logf("fault points covered: %d; residue: 0", points)
	if points < 100 {
		t.Errorf("only %d fault points", points)
	}
}

func changeRun(t *testing.T, plan *fault.Plan, who string, run func(*node, hold.ID, ledger.Op)) {
	n := bareNode(t)
	n.start(nil)
	o, giver := pluggable(), owner("", "giver", "wire")
	giver.Names = append(giver.Names, address("a"))
	take(t, n, o)
	take(t, n, giver)
	n.stop()
	passes := ledger.Pass(giver.ID, o.ID, address("a"))
	var others sync.WaitGroup
	others.Add(1) // for the fault, which may surface in the engine's background
	n.start(plan.Decorate)
	then := &node{t: t, Engine: n.Engine}
	plan.Beside = func(string) {
		go func() {
			defer others.Done()
			run(then, o.ID, passes)
		}()
	}
	_, err := n.Change(t.Context(), o.ID, plug, passes)
	plan.Heal()
	if plan.Surfaced() != "" {
		others.Wait()
	}
	if plan.Mode.Kill() && plan.Surfaced() != "" {
		n.restart()
	}
	for range 3 {
		if _, err := n.Sweep(t.Context()); err != nil {
			t.Errorf("sweep: %v", err)
		}
	}
	plugged, before := isPlugged(n, o.ID)
	if _, wanted := n.ledger.Owner(o.ID); who != "release" && (!wanted || plugged == before) || err == nil && who == "" && !plan.Mode.Kill() && !plugged {
		rec, _ := n.ledger.Owner(o.ID)
		t.Errorf("Change says %v, and the owner is %+v (as before: %t, as it was to be: %t)", err, rec, before, plugged)
	}
	holder := giver.ID
	if plugged {
		holder = o.ID
	}
	if id, _ := n.ledger.Holder(address("a")); who != "release" && id != holder {
		t.Errorf("Change says %v, and the address is %q's, want %s's; the change is made: %t", err, id, holder, plugged)
	}
	var lost []hold.ID
	for _, rec := range n.ledger.Owners() {
		if rec.ID != o.ID && rec.ID != giver.ID {
			lost = append(lost, rec.ID)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Wait(ctx, lost...); err != nil {
		t.Errorf("what was lost is not given back: %v; owed %v", err, n.Owed(""))
	}
	if rep := n.Audit(t.Context()); len(rep.Findings) > 0 {
		t.Errorf("audit: %v", rep.Findings)
	}
	release(t, n, o.ID, giver.ID)
	wantResidue(t, n, empty)
	if left := n.ledger.Owners(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	n.stop()
}

// A block that was revoked and still stands for a pod goes when the pod no longer needs the block,
// also if the pod was only about to need the block, by a change that is rolled back.
func TestChangeEndsNeed(t *testing.T) {
	changes := map[string]func(o *hold.Owner) error{
		"the need": func(o *hold.Owner) error { o.Needs = nil; return nil },
		"the need and a hold": func(o *hold.Owner) error {
			o.Needs, o.Holds = nil, o.Holds[:1]
			return nil
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			block := owner("", "block", "wire", "block")
			pod := onto(owner("", "pod", "wire", "rule"), block)
			take(t, n, block)
			take(t, n, pod)
			must(t, n.Release(t.Context(), []hold.ID{block.ID}))
			if _, err := n.Change(t.Context(), pod.ID, change); err != nil {
				t.Fatal(err)
			}
			must(t, n.Wait(t.Context(), block.ID))
			release(t, n, pod.ID)
			wantResidue(t, n, empty)
		})
	}
	t.Run("a need that comes, on a full disk", func(t *testing.T) {
		n, disk := onDisk(t)
		block, pod := owner("", "block", "wire", "block"), owner("", "pod", "wire")
		take(t, n, block)
		take(t, n, pod)
		disk.Fill(2)
		if _, err := n.Change(t.Context(), pod.ID, func(o *hold.Owner) error { o.Needs = []hold.ID{block.ID}; return nil }); err == nil {
			t.Error("the change is made on a full disk")
		}
		disk.Clear()
		must(t, n.Release(t.Context(), []hold.ID{block.ID}))
		if rec, _ := n.ledger.Owner(pod.ID); rec.Before == nil {
			t.Fatal("the change is rolled back on a full disk")
		}
		mustSweep(t, n)
		must(t, n.Wait(t.Context(), block.ID))
		release(t, n, pod.ID)
		wantResidue(t, n, empty)
	})
}

// onDisk is a node whose disk may be full.
func onDisk(t *testing.T) (*node, *fault.Disk) {
	n, disk := newNode(t), &fault.Disk{}
	n.stop()
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		disk.Ledger = l
		return disk, ks
	})
	return n, disk
}

// leased is an owner with leases that all discover one name.
func leased(which ...string) hold.Owner {
	o := owner("", "pod", "wire")
	for _, w := range which {
		o.Holds = append(o.Holds, lease(o.ID, w))
	}
	return o
}

func lease(id hold.ID, which string) hold.Hold {
	return hold.Hold{Owner: id, Spec: &thing{K: "lease", N: which + string(id), Offers: "addr"}}
}

// A hold has discovered a name, and the owner loses that hold. The name stays with the owner
// if another of its holds says the same name: the one that replaces the lost hold, or one
// that was there already.
func TestNameOfTwoHolds(t *testing.T) {
	for name, before := range map[string][]string{"gained": {"a"}, "kept": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			o := leased(before...)
			take(t, n, o)
			gone, err := n.Change(t.Context(), o.ID, func(o *hold.Owner) error {
				o.Holds = append(o.Holds[:1], lease(o.ID, "b"))
				return nil
			})
			must(t, err)
			must(t, n.Wait(t.Context(), gone))
			if id, held := n.ledger.Holder(named("addr")); !held || id != o.ID {
				t.Errorf("the address is %q's (%t)", id, held)
			}
			release(t, n, o.ID)
			wantResidue(t, n, empty)
		})
	}
}

// A hold may be taken again, and discover another name, while a change of its owner waits to
// be rolled back. The name belongs to the owner, and not to the change.
func TestRediscoveredBesideWayBack(t *testing.T) {
	n, disk := onDisk(t)
	o := leased("a")
	take(t, n, o)
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "acquire" && h.Spec.Kind() == "rule" {
			disk.Fill(1)
			return errors.New("no")
		}
		return nil
	}
	_, err := n.Change(t.Context(), o.ID, func(o *hold.Owner) error {
		o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: &thing{K: "rule", N: string(o.ID)}})
		return nil
	})
	if rec, _ := n.ledger.Owner(o.ID); rec.Before == nil {
		t.Fatalf("the change (%v) is rolled back on a full disk", err)
	}
	disk.Clear()
	n.world.set(func() {
		name := o.Holds[1].Spec.String()
		delete(n.world.things, name)
		n.world.moved[name]++
	})
	for range 2 {
		mustSweep(t, n)
	}
	rec, _ := n.ledger.Owner(o.ID)
	said := rec.Holds[1].Spec.(*thing).Names()
	if rec.Before != nil || len(said) != 1 || said[0] == named("addr") || !slices.Contains(rec.Names, said[0]) {
		t.Errorf("the lease says %v, and the owner has %v (before: %v)", said, rec.Names, rec.Before)
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
}

// A change that leaves its owner as it is succeeds or fails as its ops do.
func TestChangeOfNothing(t *testing.T) {
	n, disk := onDisk(t)
	o, other := owner("", "pod", "wire"), owner("", "other", "wire")
	take(t, n, o)
	take(t, n, other)
	nothing := func(*hold.Owner) error { return nil }
	var taken *ledger.NameTakenError
	if _, err := n.Change(t.Context(), o.ID, nothing, ledger.Begin(owner("", "pod"))); !errors.As(err, &taken) {
		t.Errorf("an op is refused, and the change says %v", err)
	}
	disk.Fill(1)
	if _, err := n.Change(t.Context(), o.ID, nothing, ledger.Releasing(other.ID, time.Now())); err == nil {
		t.Error("the disk is full, and the change is made")
	}
}
