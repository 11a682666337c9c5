package kindtest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/kindtest/toy"
	"github.com/berth-net/berth/internal/ledger"
)

// The names that a change moves: the pod loses oldName, gains newName, and gets spare from the block.
var (
	oldName = hold.Name{Space: "n", Name: "old"}
	newName = hold.Name{Space: "n", Name: "new"}
	spare   = hold.Name{Space: "n", Name: "spare"}
)

// outcome is what the test knows of a change.
type outcome int

const (
	unknown outcome = iota // the program ended during the change
	unmade
	made
)

// compete lets the API give a rival the number that somebody else has. The engine refuses the rival.
func (l *life) compete(ctx context.Context) {
	l.api.GiveTwice(1)
	err := l.Take(ctx, ownCopy(l.rival))
	l.api.GiveTwice(0) // from now on the API gives no number twice: only the rival was to get such a number
	if l.plan.Surfaced() == "" && !isTwice(err) {
		l.t.Errorf("taking what has another's number: %v", err)
	}
}

func isTwice(err error) bool {
	taken, ok := errors.AsType[*ledger.NameTakenError](err)
	return ok && taken.Name.Space == "number"
}

// change takes a rule and a name from the pod, and gives the pod another rule and another name. In the
// same commit a name of the block passes to the pod.
func (l *life) change(ctx context.Context) {
	gone, err := l.Change(ctx, l.pod.ID, func(o *hold.Owner) error {
		lost := l.pod.Holds[4].Spec.String()
		o.Holds = slices.DeleteFunc(o.Holds, func(h hold.Hold) bool { return h.Spec.String() == lost })
		o.Holds = append(o.Holds, ownHold(l.gained))
		o.Names = slices.DeleteFunc(o.Names, func(n hold.Name) bool { return n == oldName })
		o.Names = append(o.Names, newName)
		return nil
	}, ledger.Pass(l.block.ID, l.pod.ID, spare))
	switch {
	case l.dead():
	case err == nil || gone != "":
		l.changed = made
	default:
		l.changed = unmade
	}
	if l.plan.Surfaced() == "" && err != nil {
		l.t.Errorf("changing the pod: %v", err)
	}
}

func ownHold(h hold.Hold) hold.Hold {
	s := *h.Spec.(*toy.Spec)
	return hold.Hold{Owner: h.Owner, Spec: &s}
}

// whole checks that owners that stand have all that they took, with the names that were
// discovered. Only the process may be missing, if it has ended and an event has said so.
func (l *life) whole(ctx context.Context) {
	time.Sleep(10 * time.Second) // until the API throttles nobody
	var err error
	for range 4 { // the rival lacks its address until the API gives it a number of its own
		if _, err = l.Sweep(ctx); !isTwice(err) {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		l.t.Errorf("sweep: %v", err)
	}
	if rival, ok := l.ledger.Owner(l.rival.ID); ok && rival.Wanted() && !l.Doomed(rival.ID) {
		l.wholeOwner(rival)
	}
	pod, ok := l.ledger.Owner(l.pod.ID)
	if !ok || !pod.Wanted() || l.Doomed(pod.ID) {
		if l.stands {
			l.t.Errorf("the pod was taken, and released by nobody: %v", pod)
		}
		return
	}
	block, ok := l.ledger.Owner(l.block.ID)
	if !ok {
		l.t.Error("the pod stands, and its block is gone")
	}
	l.wholeOwner(pod)
	l.wholeOwner(block)
	for _, id := range l.ledger.Needers(pod.ID) { // these owners hold what the change, or its rollback, has left
		if err := l.Wait(ctx, id); err != nil {
			l.t.Errorf("waiting for a remnant: %v; owed %v", err, l.Owed(id))
		}
	}
	l.wholeChange(pod)
	if rep := l.Audit(ctx); len(rep.Findings) > 0 {
		l.t.Errorf("audit: %v", rep.Findings)
	}
}

func (l *life) wholeOwner(o hold.Owner) {
	l.mu.Lock()
	ended, told := l.ended, l.told
	l.mu.Unlock()
	for _, h := range o.Holds {
		is, proc := l.api.Has(h), h.Spec.Kind() == "proc"
		if over := proc && ended; is == over || over && told == 0 {
			l.t.Errorf("%s is there: %t; it has ended: %t, as was told %d times", h.Spec, is, ended, told)
		}
		for _, name := range namesOf(h) {
			if id, _ := l.ledger.Holder(name); id != h.Owner {
				l.t.Errorf("%s says %s, which is %q's", h.Spec, name, id)
			}
		}
		if is && len(namesOf(h)) == 0 {
			l.t.Errorf("nobody has written down what %s is", h.Spec)
		}
	}
}

// wholeChange checks that the change of the pod, which stands, is made in all its parts, or in
// none.
func (l *life) wholeChange(pod hold.Owner) {
	has := func(h hold.Hold) bool {
		return slices.ContainsFunc(pod.Holds, func(own hold.Hold) bool { return own.Spec.String() == h.Spec.String() })
	}
	holder := func(name hold.Name) hold.ID {
		id, _ := l.ledger.Holder(name)
		return id
	}
	is := holder(spare) == l.pod.ID
	if is && l.changed == unmade || !is && l.changed == made {
		l.t.Errorf("the change is made: %t; its outcome was %d", is, l.changed)
	}
	if !is && holder(spare) != l.block.ID {
		l.t.Errorf("%s is %q's", spare, holder(spare))
	}
	old := l.pod.Holds[4]
	for _, half := range []bool{has(l.gained), l.api.Has(l.gained), !has(old), !l.api.Has(old), holder(newName) == l.pod.ID, holder(oldName) == ""} {
		if half != is {
			l.t.Errorf("the change is made in part: %v; %q", pod, l.api)
		}
	}
}
