package engine

import (
	"slices"

	"github.com/berth-net/berth/internal/hold"
)

// This file has the order of owners that join another one, their lead (hold.Owner.Lead): they give back their Use holds one owner after the
// other, the greatest Joined first, and the lead gives back its own last. As among the holds of an
// ordered owner, what has failed once keeps nobody waiting any more; nor does what takes long, such as a plugin that hangs.

// isStoodOn reports whether another owner needs this one, and does not join it.
func (e *Engine) isStoodOn(l *leaving) bool {
	return slices.ContainsFunc(e.Ledger.Needers(l.owner.ID), func(id hold.ID) bool { return !e.joins(id, l.owner.ID) })
}

// isJoined reports whether another owner that joins this one is left.
func (e *Engine) isJoined(l *leaving) bool {
	return slices.ContainsFunc(e.Ledger.Needers(l.owner.ID), func(id hold.ID) bool { return e.joins(id, l.owner.ID) })
}

// joins reports whether an owner joins another one.
func (e *Engine) joins(id, lead hold.ID) bool {
	o, ok := e.Ledger.Owner(id)
	return ok && o.Lead() == lead
}

// awaits reports whether an owner that goes ahead of l does not stand, and has a Use hold that was not tried yet. Engine.mu
// is held.
func (e *Engine) awaits(l *leaving) bool {
	lead := l.owner.Lead()
	return e.anyJoined(l.owner.ID, func(o hold.Owner) bool { return !e.hasPassed(o) }) ||
		lead != "" && e.anyJoined(lead, func(o hold.Owner) bool { return o.Joined > l.owner.Joined && !e.hasPassed(o) })
}

// anyJoined reports whether is holds for one of the owners that join an owner.
func (e *Engine) anyJoined(lead hold.ID, is func(hold.Owner) bool) bool {
	return slices.ContainsFunc(e.Ledger.Needers(lead), func(id hold.ID) bool {
		o, ok := e.Ledger.Owner(id)
		return ok && o.Lead() == lead && is(o)
	})
}

// hasPassed reports whether an owner stands, or each of its Use holds has been released, has failed, takes long, or may not be tried
// yet. Engine.mu is held.
func (e *Engine) hasPassed(o hold.Owner) bool {
	l := e.leaving[o.ID]
	if l == nil || !l.tried {
		return e.stands(o)
	}
	reachable := l.reachable()
	return !slices.ContainsFunc(l.state, func(s holdState) bool { return s.untried(reachable) && !s.slow })
}

// slow notes that the try of some holds takes long, and lets the owners pass that may wait for it. Engine.mu is held.
func (e *Engine) slow(jobs []job) {
	for _, j := range jobs {
		j.l.state[j.i].slow = true
		if last := e.letPass(j.l); len(last) > 0 {
			e.spawn(func() { e.forget(last) })
		}
	}
}

// letPass lets owners go on that may have waited for l (awaits). It returns the owners that can now be forgotten. Engine.mu is
// held.
func (e *Engine) letPass(l *leaving) (last []*leaving) {
	if l.owner.Lead() == "" {
		return nil
	}
	return e.goOn(e.behind(l))
}

// behind returns the owners that wait for an owner: those that it needs and, if it joins one, those that join the same and go
// later. Each comes after those that it may have to wait for: if nothing of one can be tried, the next one goes on at once.
func (e *Engine) behind(l *leaving) []hold.ID {
	lead := l.owner.Lead()
	if lead == "" {
		return l.owner.Needs
	}
	var later []hold.Owner
	e.anyJoined(lead, func(o hold.Owner) bool {
		if o.Joined < l.owner.Joined {
			later = append(later, o)
		}
		return false
	})
	slices.SortFunc(later, func(a, b hold.Owner) int { return b.Joined - a.Joined })
	var ids []hold.ID
	for _, o := range later {
		ids = append(ids, o.ID)
	}
	return append(ids, l.owner.Needs...)
}
