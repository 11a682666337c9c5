package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// leaving is the release of one owner, from just before the cut until the ledger has
// forgotten the owner. Engine.mu guards all of it.
type leaving struct {
	owner   hold.Owner
	state   []holdState              // of owner.Holds
	tried   bool                     // the owner's cut has been tried: before that, no hold is released
	cut     bool                     // the owner's cut has succeeded
	cutAt   time.Time                // when the cut succeeded
	cutErr  error                    // the error of the last cut that failed
	final   bool                     // nothing is left to do but to forget the owner
	told    bool                     // Options.Ending was called with the owner
	trouble *trouble                 // of the forget
	gone    chan struct{}            // closed once the owner is forgotten
	stuck   chan struct{}            // closed once something is owed, and nothing else can be tried
	without map[string]chan struct{} // for WaitKind, by kind: closed once no hold of the kind is left
}

// holdState says how far the release of one hold is.
type holdState struct {
	stage    hold.Stage
	cuts     bool // the hold's kind has a Cut: the owner can be reached by this hold
	queued   bool // the hold is with its line: waits there, is being tried, or waits for its next try
	slow     bool // a try has taken a tenth of its limit: owners that join the same one do not wait for it (join.go)
	severed  bool // the hold's line sees to the cut's second leg (hold.Kind.Sever)
	released bool
	trouble  *trouble     // after a failed try
	at       time.Time    // when it was released
	past     *PastTrouble // the failed tries before the one that released it
}

// Release promises that owners go. When it returns nil, the promise is durable and each
// of the owners is cut off. The engine then gives back what they hold, and tries for as
// long as it takes; Wait waits for that.
//
// Release also releases the owners that need one of ids. If one of an owner's kinds waits
// (hold.Kind.Waits), the owners that need it are not released with it: the owner stands until
// somebody else has released them.
//
// Release leaves unknown ids out. Releasing an owner again joins the release under way.
// ops are in the commit of the promise, and may begin owners of ids that are releasing
// from their first commit on.
//
// An error means that the promise could not be written, or that a cut failed. Each owner
// that the ledger says is releasing goes all the same. The caller should say "try again".
// A caller that has to know whether the promise or the departure failed calls Promise and Depart
// instead.
func (e *Engine) Release(ctx context.Context, ids []hold.ID, ops ...ledger.Op) error {
	all, err := e.Promise(ctx, ids, ops...)
	return errors.Join(err, e.Depart(ctx, all))
}

// Promise is the first half of Release: the commit. Promise returns the owners that have to depart:
// the owners among ids that the ledger knows, and the owners that are released with them. An owner
// comes after the owners that need it.
//
// After an error the caller may not take ids and ops for promised: a commit that was
// withdrawn may have been written, or not. Promise then returns only those of the owners
// that the ledger says are releasing, by this promise or by an earlier one.
func (e *Engine) Promise(ctx context.Context, ids []hold.ID, ops ...ledger.Op) ([]hold.ID, error) {
	all, err := e.promise(ctx, ids, ops)
	if err != nil {
		all = e.promised(ids)
	} else {
		e.absolve(ids) // all lacks the owners that are forgotten by now
	}
	e.absolve(all)
	if e.Tracer != nil {
		e.Tracer.Leaves(ctx, all)
	}
	return all, err
}

// promised returns the owners in the family of ids that are releasing.
func (e *Engine) promised(ids []hold.ID) []hold.ID {
	return slices.DeleteFunc(e.family(ids), e.wanted)
}

// promise commits that the family of ids is releasing, and returns that family.
func (e *Engine) promise(ctx context.Context, ids []hold.ID, ops []ledger.Op) ([]hold.ID, error) {
	now := e.now()
	for {
		all := e.family(ids)
		commit := append([]ledger.Op(nil), ops...)
		var ours []hold.ID // the owners that this commit makes releasing
		for _, id := range ids {
			if !e.known(id) { // ops may begin the owner
				ours = append(ours, id)
			}
		}
		for _, id := range all {
			if e.wanted(id) {
				ours = append(ours, id)
				commit = append(commit, ledger.ReleasingAfter(id, now, earlierOf(ctx, id)))
			}
		}
		if len(commit) > 0 {
			err := e.commit(ctx, commit...)
			if errors.Is(err, ledger.ErrUnknown) {
				continue // an owner was forgotten in between: look again
			}
			if err != nil {
				return nil, err
			}
			e.noteAsker(ctx, ours)
		}
		ops = nil
		// An owner that needs one of them may have begun before the commit, or by ops: then
		// the family has grown, and the loop goes on. No such owner can begin now, because the
		// ledger refuses to begin an owner that needs a releasing one.
		if all = e.family(ids); !slices.ContainsFunc(all, e.wanted) {
			return all, nil
		}
	}
}

// wanted reports whether an owner is known and not releasing.
func (e *Engine) wanted(id hold.ID) bool {
	o, ok := e.Ledger.Owner(id)
	return ok && o.Wanted()
}

// known reports whether the ledger has an owner.
func (e *Engine) known(id hold.ID) bool {
	_, ok := e.Ledger.Owner(id)
	return ok
}

// family returns the owners among ids that the ledger knows, and all owners that are released with
// them: each owner once, and after the owners that need it.
func (e *Engine) family(ids []hold.ID) []hold.ID {
	var all []hold.ID
	seen := map[hold.ID]bool{}
	var visit func(hold.ID)
	visit = func(id hold.ID) {
		if seen[id] {
			return
		}
		seen[id] = true
		o, ok := e.Ledger.Owner(id)
		if !ok {
			return
		}
		if !e.waits(o) {
			for _, needer := range e.Ledger.Needers(id) {
				visit(needer)
			}
		}
		all = append(all, id)
	}
	for _, id := range ids {
		visit(id)
	}
	return all
}

// waits reports whether an owner's release waits for the owners that need it. If it does not wait,
// the release takes those owners with it.
func (e *Engine) waits(o hold.Owner) bool {
	return slices.ContainsFunc(o.Holds, func(h hold.Hold) bool {
		k, err := e.kind(h)
		return err == nil && k.Waits
	})
}

// stands reports whether an owner's holds have to be there: the owner is wanted, or its
// release waits for an owner that needs it and stands.
func (e *Engine) stands(o hold.Owner) bool { return o.Wanted() || e.needed(o.ID) }

// needed reports whether another owner that stands needs this one.
func (e *Engine) needed(id hold.ID) bool {
	return slices.ContainsFunc(e.Ledger.Needers(id), func(needer hold.ID) bool {
		o, ok := e.Ledger.Owner(needer)
		return ok && e.stands(o)
	})
}

func (e *Engine) newLeaving(o hold.Owner) *leaving {
	l := &leaving{owner: o, state: make([]holdState, len(o.Holds)), gone: make(chan struct{}), stuck: make(chan struct{})}
	for i, h := range o.Holds {
		l.state[i].stage = hold.Use // an unknown kind keeps its owner's names
		if k, err := e.kind(h); err == nil {
			l.state[i].stage, l.state[i].cuts = k.Stage, k.Cut != nil
		}
	}
	return l
}

// unreleased returns the holds of an owner that are not given back yet.
func (e *Engine) unreleased(l *leaving) []hold.Hold {
	e.mu.Lock()
	defer e.mu.Unlock()
	var left []hold.Hold
	for i, h := range l.owner.Holds {
		if !l.state[i].released {
			left = append(left, h)
		}
	}
	return left
}

// advance sends each hold that can be released now to its kind's line. Nothing goes before
// the cut has been tried. While the owner can be reached, advance sends only the holds whose
// kind has a Cut. Use and Reserve holds wait until no other owner needs this owner any more, and until
// the owners that join it have been tried (join.go). Reserve holds go after all Use holds, one by one. If only
// Tell holds that have failed are left, or owners that join this one, advance frees the owner's names.
// advance returns true if nothing is left and the owner can be forgotten, and returns true only once. Engine.mu is held.
func (e *Engine) advance(l *leaving) bool {
	if !l.tried {
		return false
	}
	reachable, waits := l.reachable(), e.isStoodOn(l) || e.awaits(l)
	for i, s := range l.state {
		switch {
		case s.stage == hold.Reserve, s.stage == hold.Use && (waits || l.owner.Ordered && !l.turn(i, reachable)):
		case s.cuts || !reachable:
			e.send(l, i)
		}
	}
	if l.left(hold.Use) > 0 || waits {
		return false
	}
	if i := l.lastReserve(); i >= 0 {
		e.send(l, i)
		return false
	}
	if l.left(hold.Tell) == 0 && !e.isJoined(l) {
		forget := !l.final
		l.final = true
		return forget
	}
	if l.untold() && len(l.owner.Names) > 0 {
		l.owner.Names = nil
		e.spawn(func() { e.freeNames(l.owner.ID) })
	}
	return false
}

// turn reports whether it is the i-th hold's turn in an owner whose Use holds go one after
// the other: each Use hold that was acquired later is released, has failed, or may not be
// tried yet.
func (l *leaving) turn(i int, reachable bool) bool {
	return !slices.ContainsFunc(l.state[i+1:], func(s holdState) bool { return s.untried(reachable) })
}

// untried reports whether a Use hold may be tried, and has neither been released nor failed yet.
func (s holdState) untried(reachable bool) bool {
	return s.stage == hold.Use && !s.released && s.trouble == nil && (s.cuts || !reachable)
}

// reachable reports whether the cut has failed and a hold that it should have cut is still
// there. As long as that is so, the owner's other holds are not released: the owner's traffic would
// leave new traces, such as connection tracking entries, at once.
func (l *leaving) reachable() bool {
	return !l.cut && slices.ContainsFunc(l.state, func(s holdState) bool { return s.cuts && !s.released })
}

// left counts the holds of a stage that are not released.
func (l *leaving) left(s hold.Stage) int {
	n := 0
	for _, h := range l.state {
		if h.stage == s && !h.released {
			n++
		}
	}
	return n
}

// lastReserve returns the index of the Reserve hold that is to be released next, or -1.
func (l *leaving) lastReserve() int {
	for i := len(l.state) - 1; i >= 0; i-- {
		if s := l.state[i]; s.stage == hold.Reserve && !s.released {
			return i
		}
	}
	return -1
}

// untold reports whether each hold that is left has been tried, and has failed.
func (l *leaving) untold() bool {
	for _, s := range l.state {
		if !s.released && s.trouble == nil {
			return false
		}
	}
	return true
}
