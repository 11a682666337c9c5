package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

func take(t *testing.T, n *node, o hold.Owner) {
	t.Helper()
	if err := n.Take(t.Context(), o); err != nil {
		t.Fatalf("taking %s: %v", o, err)
	}
}

// release releases owners and waits until nothing of them is left.
func release(t *testing.T, n *node, ids ...hold.ID) {
	t.Helper()
	if err := n.Release(t.Context(), ids); err != nil {
		t.Fatalf("releasing: %v", err)
	}
	if err := n.Wait(t.Context(), ids...); err != nil {
		t.Fatalf("waiting: %v", err)
	}
}

func mustSweep(t *testing.T, n *node) {
	t.Helper()
	_, err := n.Sweep(t.Context())
	must(t, err)
}

func wantResidue(t *testing.T, n *node, want string) {
	t.Helper()
	if got := n.world.residue(); got != want {
		t.Errorf("world has %s, want %s", got, want)
	}
}

func TestTakeGivesAllAndReleaseGivesAllBack(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "lease", "wire", "rule", "lease2", "note")
	o.Holds = slices.DeleteFunc(o.Holds, func(h hold.Hold) bool { return h.Spec.Kind() == "lease2" })
	take(t, n, o)
	if got, _ := n.ledger.Owner(o.ID); got.Holds[0].Spec.(*thing).Seen != "leased" {
		t.Errorf("what was discovered is not in the ledger: %+v", got.Holds[0].Spec)
	}
	release(t, n, o.ID)
	wantResidue(t, n, empty)
	if got := n.eventTypes(o.ID); got != "attaching attached releasing released" {
		t.Errorf("events: %s", got)
	}
	// A reservation goes after everything that uses it. The cut comes first.
	log := n.world.done()
	lease := slices.Index(log, "release lease "+string(o.ID))
	for _, use := range []string{"wire", "rule"} { // the note may go at any time
		if i := slices.Index(log, "release "+use+" "+string(o.ID)); i < 0 || i > lease {
			t.Errorf("the lease was not released after the %s: %v", use, log)
		}
	}
	if log[4] != "cut wire "+string(o.ID) {
		t.Errorf("the cut was not first: %v", log)
	}
}

func TestReservationsGoInReverse(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "lease", "lease", "lease")
	for i, h := range o.Holds {
		h.Spec.(*thing).N = string(rune('1' + i))
	}
	take(t, n, o)
	release(t, n, o.ID)
	want := []string{"release lease 3", "release lease 2", "release lease 1"}
	if got := n.world.done()[3:]; !slices.Equal(got, want) {
		t.Errorf("released %v, want %v", got, want)
	}
}

// The owners are a sandbox and its containers: the engine does not know what its owners are.
func TestChildrenGoBeforeTheirParentsReservations(t *testing.T) {
	n := newNode(t)
	sandbox := owner("", "sandbox", "lease", "wire")
	take(t, n, sandbox)
	first, second := owner(sandbox.ID, "c1", "rule"), owner(sandbox.ID, "c2", "rule", "lease")
	take(t, n, first)
	take(t, n, second)
	failing := true
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if failing && op == "release" && h.Owner == second.ID && h.Spec.Kind() == "rule" {
			failing = false
			if got := n.world.residue(); !strings.Contains(got, "lease "+string(sandbox.ID)) {
				t.Error("the sandbox's reservation was released before its container's rule")
			}
			return errors.New("busy")
		}
		return nil
	}
	release(t, n, sandbox.ID)
	wantResidue(t, n, empty)
	if left := n.ledger.Owners(); len(left) != 0 {
		t.Errorf("left in the ledger: %v", left)
	}
	if err := n.Take(t.Context(), owner(sandbox.ID, "late", "rule")); !errors.Is(err, ledger.ErrNeeds) {
		t.Errorf("one that needs an owner that is gone: %v, want ErrNeeds", err)
	}
}

func TestFailedTakeIsUndone(t *testing.T) {
	n := newNode(t)
	boom := errors.New("boom")
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "acquire" && h.Spec.Kind() == "rule" {
			return boom
		}
		return nil
	}
	o := owner("", "a", "lease", "wire", "rule")
	if err := n.Take(t.Context(), o); !errors.Is(err, boom) {
		t.Fatalf("Take: %v, want boom", err)
	}
	must(t, n.Wait(t.Context(), o.ID))
	wantResidue(t, n, empty)
	if _, taken := n.ledger.Holder(o.Names[0]); taken {
		t.Error("the name is still taken")
	}
}

func TestRefusedTakeChangesNothing(t *testing.T) {
	n := newNode(t)
	a, b := owner("", "same", "wire"), owner("", "same", "wire")
	take(t, n, a)
	var refused *engine.RefusedError
	var taken *ledger.NameTakenError
	if err := n.Take(t.Context(), b); !errors.As(err, &refused) || !errors.As(err, &taken) || taken.Owner != a.ID {
		t.Fatalf("second Take of a name: %v", err)
	}
	alien := owner("", "b", "submarine")
	if err := n.Take(t.Context(), alien); !errors.As(err, &refused) || !strings.Contains(err.Error(), "submarine") {
		t.Errorf("Take of an unknown kind: %v", err)
	}
	release(t, n, a.ID)
	wantResidue(t, n, empty)
}

func TestReleaseOvertakesTake(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire", "rule")
	reached := make(chan struct{})
	n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
		if op == "acquire" && h.Spec.Kind() == "rule" {
			close(reached)
			<-ctx.Done() // a step that takes long, and heeds its context
			return ctx.Err()
		}
		return nil
	}
	taken := make(chan error)
	go func() { taken <- n.Take(t.Context(), o) }()
	<-reached
	if !n.Taking(o.ID) {
		t.Error("Taking is false during Take")
	}
	release(t, n, o.ID)
	if err := <-taken; !errors.Is(err, engine.ErrOvertaken) {
		t.Errorf("Take: %v, want ErrOvertaken", err)
	}
	wantResidue(t, n, empty)
	if log := n.world.done(); slices.Index(log, "cut wire "+string(o.ID)) < slices.Index(log, "acquire wire "+string(o.ID)) {
		t.Errorf("cut before the Take had stopped: %v", log)
	}
}

func TestSecondReleaseJoinsTheFirst(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire")
	take(t, n, o)
	for range 3 {
		must(t, n.Release(t.Context(), []hold.ID{o.ID, "unknownxxx"}))
	}
	must(t, n.Wait(t.Context(), o.ID))
	if got := n.eventTypes(o.ID); strings.Count(got, "releasing") != 1 || strings.Count(got, "released") != 1 {
		t.Errorf("events: %s", got)
	}
}

func TestFailedCutIsAnErrorAndIsTriedAgain(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire")
	take(t, n, o)
	stuck := make(chan struct{})
	cuts := 0
	n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
		switch op {
		case "cut":
			if cuts++; cuts == 1 {
				return errors.New("no cut")
			}
		case "release":
			<-stuck
		}
		return nil
	}
	if err := n.Release(t.Context(), []hold.ID{o.ID}); err == nil || !strings.Contains(err.Error(), "no cut") {
		t.Errorf("Release: %v, want the failed cut", err)
	}
	if err := n.Release(t.Context(), []hold.ID{o.ID}); err != nil || cuts != 2 {
		t.Errorf("second Release: %v after %d cuts, want nil after 2", err, cuts)
	}
	close(stuck)
	must(t, n.Wait(t.Context(), o.ID))
	wantResidue(t, n, empty)
}

// A failed DEL is tried again with all that it needs. In multus #355 and #922, and in runtimes
// in general, the first DEL forgot what later tries needed.
func TestWhatFailsIsOwedAndBlocksNobody(t *testing.T) {
	n := newNode(t)
	bad, good := owner("", "bad", "lease", "wire", "rule"), owner("", "good", "lease", "wire", "rule")
	take(t, n, bad)
	take(t, n, good)
	heal := make(chan struct{})
	tries := make(chan struct{}, 1000)
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op == "release" && h.Owner == bad.ID && h.Spec.Kind() == "wire" {
			select {
			case <-heal:
			default:
				tries <- struct{}{}
				return errors.New("device busy")
			}
		}
		return nil
	}
	must(t, n.Release(t.Context(), []hold.ID{bad.ID}))
	release(t, n, good.ID)
	for range 5 {
		<-tries
	}
	owed := n.Owed(bad.ID)
	if len(owed) != 1 || owed[0].Hold.Spec.Kind() != "wire" || owed[0].Tries < 4 || owed[0].Err.Error() != "device busy" {
		t.Errorf("owed: %+v", owed)
	}
	if _, taken := n.ledger.Holder(bad.Names[0]); !taken {
		t.Error("the name of an owner that is owed is free")
	}
	// The rule beside the failed hold went. The reservation that the failed hold uses did not go.
	if got := n.world.residue(); strings.Contains(got, "rule") || !strings.Contains(got, "lease") {
		t.Errorf("world: %s", got)
	}
	close(heal)
	must(t, n.Wait(t.Context(), bad.ID))
	wantResidue(t, n, empty)
	if len(n.Owed("")) != 0 {
		t.Errorf("still owed: %v", n.Owed(""))
	}
	if got := n.eventTypes(bad.ID); strings.Count(got, "owed") != 1 {
		t.Errorf("events: %s", got)
	}
}

// In cilium #35411, #40219, every DEL waited for the walk through connection tracking.
func TestHangingKindKeepsNobodyElse(t *testing.T) {
	n := newNode(t)
	hung, other := owner("", "hung", "rule"), owner("", "other", "wire")
	take(t, n, hung)
	take(t, n, other)
	let := make(chan struct{})
	n.world.before = hanging(let, "release", hung.ID)
	must(t, n.Release(t.Context(), []hold.ID{hung.ID, other.ID}))
	must(t, n.Wait(t.Context(), other.ID))
	close(let)
	must(t, n.Wait(t.Context(), hung.ID))
}

func TestUntoldKeepsNoName(t *testing.T) {
	n := newNode(t)
	n.rest = time.Hour
	o := owner("", "a", "wire", "note")
	heal := make(chan struct{})
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		select {
		case <-heal:
			return nil
		default:
		}
		if h.Spec.Kind() == "note" {
			return errors.New("API server away")
		}
		return nil
	}
	take(t, n, o) // a Tell hold that fails lets no Take fail
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	nettest.Eventually(t, "the name is free", func() bool {
		_, taken := n.ledger.Holder(o.Names[0])
		return !taken
	})
	if rests := n.ledger.Resting(); len(rests) != 1 || rests[0].Name != o.Names[0] {
		t.Errorf("resting: %v, want the name of %s", rests, o)
	}
	if owed := n.Owed(o.ID); len(owed) != 1 {
		t.Errorf("owed: %v", owed)
	}
	close(heal)
	must(t, n.Wait(t.Context(), o.ID))
}

func TestManyReleasesAreOneBatch(t *testing.T) {
	n := newNode(t)
	var ids []hold.ID
	for i := range 40 {
		o := owner("", string(rune('A'+i)), "wire")
		take(t, n, o)
		ids = append(ids, o.ID)
	}
	var cut atomic.Int32
	all := make(chan struct{})
	n.world.before = func(_ context.Context, op string, _ hold.Hold) error {
		switch op {
		case "cut":
			if cut.Add(1) == int32(len(ids)) {
				close(all)
			}
		case "release": // otherwise each hold would go by itself as soon as its owner is cut off
			<-all
		}
		return nil
	}
	release(t, n, ids...)
	if got := n.world.batch["wire"]; got != 8 {
		t.Errorf("largest batch %d, want the kind's 8", got)
	}
	wantResidue(t, n, empty)
}

// Another version of the program may know fewer kinds.
func TestUnknownKindIsKeptAndOwed(t *testing.T) {
	n := newNode(t)
	o := owner("", "a", "wire", "rule")
	take(t, n, o)
	n.stop()
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) { return l, ks[:2] }) // without rule
	must(t, n.Restore(t.Context()))
	if got, want := findings(n), "unreadable rule "+string(o.ID)+"\n"; got != want {
		t.Errorf("audit: %q, want %q", got, want)
	}
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	if owed := n.Owed(o.ID); len(owed) != 1 || !strings.Contains(owed[0].Err.Error(), `does not know the kind "rule"`) {
		t.Errorf("owed: %+v", owed)
	}
	n.restart() // with all kinds: the release goes on
	must(t, n.Wait(t.Context(), o.ID))
	wantResidue(t, n, empty)
}

func TestRestoreGoesOnWithTheLedger(t *testing.T) {
	n := newNode(t)
	stays, lost, leaving := owner("", "stays", "lease", "wire"), owner("", "lost", "wire"), owner("", "leaving", "wire")
	for _, o := range []hold.Owner{stays, lost, leaving} {
		take(t, n, o)
	}
	n.Close() // no release goes on any more
	must(t, n.ledger.Commit(t.Context(), ledger.Releasing(leaving.ID, time.Now())))
	n.world.set(func() {
		delete(n.world.things, "wire "+string(stays.ID))
		delete(n.world.users, "stays")
	})
	n.ledger.Close()
	n.start(nil, func(o *engine.Options) {
		o.Homeless = func(o hold.Owner) bool { return o.ID == lost.ID }
	})
	n.world.set(func() {
		delete(n.world.things, "wire "+string(lost.ID))
		delete(n.world.users, "lost")
	})
	must(t, n.Restore(t.Context()))
	must(t, n.Wait(t.Context(), leaving.ID, lost.ID))
	left := n.ledger.Owners()
	if len(left) != 1 || left[0].ID != stays.ID {
		t.Errorf("left: %v, want only the one that stays", left)
	}
	if r := n.Audit(t.Context()); len(r.Findings) != 0 {
		t.Errorf("audit: %v", r.Findings)
	}
	release(t, n, stays.ID)
	wantResidue(t, n, empty)
}
