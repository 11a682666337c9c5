package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// leaving is an owner on its way out, from the cut to the forget. All of it is
// guarded by Engine.mu.
type leaving struct {
	owner   hold.Owner
	state   []holdState // of owner.Holds
	tried   bool        // to cut it: nothing is released before
	cut     bool        // unreachable
	final   bool        // nothing is left but the forget
	trouble *trouble    // of the forget
	gone    chan struct{}
	stuck   chan struct{}            // closed once something is owed, and nothing else can be tried
	without map[string]chan struct{} // by kind, of those who wait: closed once no hold of it is left
}

// holdState says how far the release of one hold is.
type holdState struct {
	stage    hold.Stage
	cuts     bool // its kind has a Cut: the owner can be reached by it
	queued   bool // at its line, or about to be
	severed  bool // or its line sees to that
	released bool
	trouble  *trouble // after a failed try
}

// Release promises that owners go. When it returns nil, that is durable and
// each of them is cut off; what they hold is given back from then on, without
// end until it is done, and Wait waits for it. Who needs them goes with them, or,
// where a kind of theirs says so (hold.Kind.Waits), is released first, by somebody
// else: until then they stand.
// Unknown ids are left out; releasing again joins the release under way. ops
// are in the same commit, and may begin owners of ids that are releasing at
// once.
//
// An error means that the promise could not be written or that a cut failed.
// Whoever is releasing in the ledger goes all the same. The caller should say
// "try again". Who has to know which of the two it was calls Promise and Depart.
func (e *Engine) Release(ctx context.Context, ids []hold.ID, ops ...ledger.Op) error {
	all, err := e.Promise(ctx, ids, ops...)
	return errors.Join(err, e.Depart(ctx, all))
}

// Promise is the first half of Release: the commit. It returns who has to
// depart: the known ones of ids and who goes with them, who needs an owner before it.
//
// After an error nothing of ids and ops may be taken for promised: a commit that
// was withdrawn may have had its effect, or not. Then only those are returned who
// are releasing by this promise or by an earlier one.
func (e *Engine) Promise(ctx context.Context, ids []hold.ID, ops ...ledger.Op) ([]hold.ID, error) {
	all, err := e.promise(ctx, ids, ops)
	if err != nil {
		all = e.promised(ids)
	} else {
		e.absolve(ids) // also who is forgotten by now
	}
	e.absolve(all)
	return all, err
}

// promised returns those of ids, and of who goes with them, that are releasing.
func (e *Engine) promised(ids []hold.ID) []hold.ID {
	return slices.DeleteFunc(e.family(ids), e.wanted)
}

// promise commits that owners and who goes with them are releasing, and returns
// those that are known, who needs an owner before it.
func (e *Engine) promise(ctx context.Context, ids []hold.ID, ops []ledger.Op) ([]hold.ID, error) {
	now := e.now()
	for {
		all := e.family(ids)
		commit := append([]ledger.Op(nil), ops...)
		for _, id := range all {
			if e.wanted(id) {
				commit = append(commit, ledger.Releasing(id, now))
			}
		}
		if len(commit) > 0 {
			err := e.Ledger.Commit(ctx, commit...)
			if errors.Is(err, ledger.ErrUnknown) {
				continue // one was forgotten in between: look again
			}
			if err != nil {
				return nil, err
			}
		}
		ops = nil
		// Nobody who needs them has come in between, and nobody can now; ops may have
		// begun some.
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

// family returns the known ones of ids with all who are released with them, who needs
// an owner before it, each once.
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

// waits reports whether an owner goes after those who need it, and not with them.
func (e *Engine) waits(o hold.Owner) bool {
	return slices.ContainsFunc(o.Holds, func(h hold.Hold) bool {
		k, err := e.kind(h)
		return err == nil && k.Waits
	})
}

// stands reports whether what an owner holds is to be there: it is wanted, or its
// release waits for one that needs it, and stands.
func (e *Engine) stands(o hold.Owner) bool { return o.Wanted() || e.needed(o.ID) }

// needed reports whether one that needs an owner stands.
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

// advance sends what can be released now to its line: what others stand on, once
// those who need the owner are gone. It reports whether the owner has nothing left and
// can be forgotten, once. Engine.mu is held.
func (e *Engine) advance(l *leaving) bool {
	if !l.tried {
		return false
	}
	reachable, needed := l.reachable(), len(e.Ledger.Needers(l.owner.ID)) > 0
	for i, s := range l.state {
		switch {
		case s.stage == hold.Reserve, s.stage == hold.Use && (needed || l.owner.Ordered && !l.turn(i, reachable)):
		case s.cuts || !reachable:
			e.send(l, i)
		}
	}
	if l.left(hold.Use) > 0 || needed {
		return false
	}
	if i := l.lastReserve(); i >= 0 {
		e.send(l, i)
		return false
	}
	if l.left(hold.Tell) == 0 {
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

// turn reports whether each Use hold that was acquired after the i-th one has been
// tried, if it may be.
func (l *leaving) turn(i int, reachable bool) bool {
	return !slices.ContainsFunc(l.state[i+1:], func(s holdState) bool {
		return s.stage == hold.Use && !s.released && s.trouble == nil && (s.cuts || !reachable)
	})
}

// reachable reports whether a cut has failed, and what it was about is still
// there. Until it is not, what else the owner has might come back as soon as it
// is released: its traffic leaves new traces.
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

// lastReserve returns the index of the reserving hold that is next, or -1.
func (l *leaving) lastReserve() int {
	for i := len(l.state) - 1; i >= 0; i-- {
		if s := l.state[i]; s.stage == hold.Reserve && !s.released {
			return i
		}
	}
	return -1
}

// untold reports whether all that is left has been tried, and failed.
func (l *leaving) untold() bool {
	for _, s := range l.state {
		if !s.released && s.trouble == nil {
			return false
		}
	}
	return true
}
