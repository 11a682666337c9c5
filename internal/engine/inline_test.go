package engine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/turn"
)

// takeInLine takes owners in a line, and returns a channel for each Take's answer.
func takeInLine(t *testing.T, n *node, owners ...hold.Owner) (answers []chan error) {
	t.Helper()
	var l turn.Line
	for _, o := range owners {
		spot, answer := l.Join(), make(chan error, 1)
		answers = append(answers, answer)
		go func() {
			defer spot.Leave()
			answer <- n.Take(turn.InLine(t.Context(), spot), o)
		}()
		<-spot.Arrived()
	}
	return answers
}

// reachesLedger waits until the ledger has an owner.
func reachesLedger(t *testing.T, n *node, id hold.ID) {
	t.Helper()
	nettest.Eventually(t, "the owner in the ledger", func() bool { _, there := n.ledger.Owner(id); return there })
}

// Owners in a line are in the ledger before their turn comes, and one's holds are acquired when all holds of the one ahead are.
func TestInLine(t *testing.T) {
	n := newNode(t)
	a, b := owner("", "a", "wire", "rule"), owner("", "b", "wire")
	let := make(chan struct{})
	n.world.before = on("acquire", func(_ context.Context, h hold.Hold) error {
		switch {
		case h.Owner == b.ID && !n.world.has(a.Holds[1]):
			t.Error("the second owner's hold is acquired before the first one's last")
		case h.Owner == a.ID && h.Spec.Kind() == "rule":
			<-let
		}
		return nil
	})
	answers := takeInLine(t, n, a, b)
	reachesLedger(t, n, b.ID)
	close(let)
	must(t, <-answers[0], <-answers[1])
	for _, o := range []hold.Owner{a, b} {
		if !n.world.has(o.Holds[0]) {
			t.Errorf("%s has not got its wire", o.ID)
		}
	}
	release(t, n, a.ID)
	release(t, n, b.ID)
	wantResidue(t, n, empty)
}

// The next owner in a line does not wait until the ledger has what the holds ahead have discovered: it goes on although that cannot be
// written.
func TestInLineBeforeLearning(t *testing.T) {
	n := newNode(t)
	has, a, b := owner("", "has", "lease"), owner("", "a", "lease"), owner("", "b", "wire")
	has.Holds[0].Spec.(*thing).Offers = "taken"
	must(t, n.Take(t.Context(), has))
	a.Holds[0].Spec.(*thing).Offers = "taken"
	answers := takeInLine(t, n, a, b)
	var taken *ledger.NameTakenError
	if err := <-answers[0]; !errors.As(err, &taken) {
		t.Errorf("the first: %v", err)
	}
	must(t, <-answers[1])
	release(t, n, b.ID)
	release(t, n, has.ID)
	wantResidue(t, n, empty)
}

// If one in a line fails, nothing of those behind it is acquired, and all of them are released.
func TestInLineFails(t *testing.T) {
	n := newNode(t)
	a, b := owner("", "a", "wire"), owner("", "b", "wire")
	let := make(chan struct{})
	n.world.before = on("acquire", func(_ context.Context, h hold.Hold) error {
		if h.Owner == b.ID {
			t.Error("the second owner's hold is acquired")
		}
		<-let
		return errors.New("device busy")
	})
	answers := takeInLine(t, n, a, b)
	reachesLedger(t, n, b.ID)
	close(let)
	if err := <-answers[0]; err == nil {
		t.Error("the first has succeeded")
	}
	if err := <-answers[1]; !errors.Is(err, turn.ErrAhead) {
		t.Errorf("the second: %v", err)
	}
	must(t, n.Wait(t.Context(), a.ID, b.ID))
	wantResidue(t, n, empty)
}

// A release overtakes a Take that waits in a line.
func TestInLineOvertaken(t *testing.T) {
	n := newNode(t)
	a, b := owner("", "a", "wire"), owner("", "b", "wire")
	let := make(chan struct{})
	n.world.before = hanging(let, "acquire", a.ID)
	answers := takeInLine(t, n, a, b)
	reachesLedger(t, n, b.ID)
	release(t, n, b.ID)
	if err := <-answers[1]; !errors.Is(err, engine.ErrOvertaken) {
		t.Errorf("the second: %v", err)
	}
	close(let)
	must(t, <-answers[0])
	release(t, n, a.ID)
	wantResidue(t, n, empty)
}
