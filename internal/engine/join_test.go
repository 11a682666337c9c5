package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// networks takes a pod's first network, and three others that join it.
func networks(t *testing.T, n *node) (first hold.Owner, others []hold.Owner) {
	first = owner("", "eth0", "wire", "note")
	take(t, n, first)
	for i, name := range []string{"net1", "net2", "net3"} {
		o := onto(owner("", name, "wire"), first)
		o.Joined = i + 1
		take(t, n, o)
		others = append(others, o)
	}
	return first, others
}

// order returns the wires that were released, in their order, by the names of their owners' networks.
func order(n *node, owners ...hold.Owner) []string {
	var all []string
	for _, line := range n.world.done() {
		for _, o := range owners {
			if line == "release "+o.Holds[0].Spec.String() {
				all = append(all, o.NamesIn("n")[0])
			}
		}
	}
	return all
}

// The networks of a pod go in reverse of their coming, the first one last.
func TestJoinedGoInReverse(t *testing.T) {
	n := newNode(t)
	first, others := networks(t, n)
	release(t, n, first.ID)
	if got, want := order(n, append(others, first)...), []string{"net3", "net2", "net1", "eth0"}; !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
	wantResidue(t, n, empty)
}

// One network of a pod goes alone: the others stand.
func TestJoinedGoesAlone(t *testing.T) {
	n := newNode(t)
	first, others := networks(t, n)
	release(t, n, others[0].ID)
	for _, o := range []hold.Owner{first, others[1], others[2]} {
		if rec, ok := n.ledger.Owner(o.ID); !ok || !rec.Wanted() || !n.world.has(o.Holds[0]) {
			t.Errorf("%v does not stand: %v", o, rec)
		}
	}
	release(t, n, first.ID)
	wantResidue(t, n, empty)
}

// Nobody joins a pod that goes.
func TestNobodyJoinsWhatGoes(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	first, _ := networks(t, n)
	n.world.before = failing("release", first.ID)
	must(t, n.Release(t.Context(), []hold.ID{first.ID}))
	late := onto(owner("", "late", "wire"), first)
	late.Joined = 4
	if err := n.Take(t.Context(), late); !errors.Is(err, ledger.ErrNeeds) {
		t.Errorf("joining what goes: %v, want ErrNeeds", err)
	}
}

// stuck releases a pod whose second network cannot be released, and waits until nothing more can be tried.
func stuck(t *testing.T, n *node) (first hold.Owner, others []hold.Owner) {
	first, others = networks(t, n)
	n.world.before = failing("release", others[1].ID)
	must(t, n.Release(t.Context(), []hold.ID{first.ID}))
	tried(t, n, first.ID)
	return first, others
}

// passes checks that the stuck network keeps no other thing and no name of the pod.
func passes(t *testing.T, n *node, first hold.Owner, others []hold.Owner) {
	t.Helper()
	for _, o := range []hold.Owner{first, others[0], others[2]} {
		if n.world.has(o.Holds[0]) {
			t.Errorf("%s is there", o.Holds[0].Spec)
		}
	}
	nettest.Eventually(t, "the pod's names to be free", func() bool {
		_, taken := n.ledger.Holder(first.Names[0])
		return !taken
	})
	if owed := n.Owed(""); len(owed) != 1 || owed[0].Hold.Owner != others[1].ID {
		t.Errorf("owed: %v", owed)
	}
	if _, ok := n.ledger.Owner(first.ID); !ok {
		t.Error("the pod is forgotten, and nobody can see what it owes")
	}
}

// A network that cannot be released keeps no other network, and no name of these.
func TestStuckJoinedKeepsNothing(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	first, others := stuck(t, n)
	passes(t, n, first, others)
	if got, want := order(n, append(others, first)...), []string{"net3", "net1", "eth0"}; !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
	n.world.before = func(context.Context, string, hold.Hold) error { return nil }
	n.Retry()
	must(t, n.Wait(t.Context(), first.ID))
	wantResidue(t, n, empty)
}

// The same after a restart between the promise and the first release.
func TestStuckJoinedAfterARestart(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	first, others := networks(t, n)
	must(t, n.Ledger.Commit(t.Context(), ledger.Releasing(first.ID, time.Now()), ledger.Releasing(others[0].ID, time.Now()),
		ledger.Releasing(others[1].ID, time.Now()), ledger.Releasing(others[2].ID, time.Now())))
	n.world.before = failing("release", others[1].ID)
	n.restart()
	tried(t, n, first.ID)
	passes(t, n, first, others)
}

// A release that never returns counts as one that has failed.
func TestHangingJoinedKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, nil, hourly)
		first, others := networks(t, n)
		let := make(chan struct{})
		n.world.before = hanging(let, "release", others[1].ID)
		must(t, n.Release(t.Context(), []hold.ID{first.ID}))
		tried(t, n, first.ID)
		passes(t, n, first, others)
		close(let)
		n.Retry()
		must(t, n.Wait(t.Context(), first.ID))
		wantResidue(t, n, empty)
	})
}

// A release that takes long keeps no other network waiting, although it has not failed yet.
func TestSlowJoinedKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, nil, hourly)
		first, others := networks(t, n)
		let := make(chan struct{})
		n.world.before = hanging(let, "release", others[1].ID)
		must(t, n.Release(t.Context(), []hold.ID{first.ID}))
		time.Sleep(20 * time.Second) // of the bubble's clock: the try's limit is 30 s
		if got, want := order(n, append(others, first)...), []string{"net3", "net1", "eth0"}; !slices.Equal(got, want) {
			t.Errorf("the order is %q, want %q", got, want)
		}
		if owed := n.Owed(""); len(owed) > 0 {
			t.Errorf("owed: %v", owed)
		}
		close(let)
		must(t, n.Wait(t.Context(), first.ID))
		wantResidue(t, n, empty)
	})
}
