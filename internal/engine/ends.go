package engine

import (
	"errors"
	"slices"

	"github.com/berth-net/berth/internal/hold"
)

// unended leaves out the drifts of things that have come to their end by themselves
// (hold.ErrEnded): the engine does not take such things again. The first time that unended sees the
// end of a thing, the engine sends an Ended event. The engine sends none if the thing is gone
// because its owner gives the thing back, nor while the owner is being taken.
func (e *Engine) unended(drifts Missing) Missing {
	return slices.DeleteFunc(drifts, func(d drift) bool {
		k, err := e.kind(d.hold)
		if err != nil || !k.Ends || !errors.Is(d.err, hold.ErrEnded) {
			return false
		}
		if e.ends(d) {
			e.event(Ended, d.owner, k.Name(), d.err)
		}
		return true
	})
}

// ends reports whether the end of a thing is news, and notes the end in Engine.over, so that it is
// news only once. ends reads the owner from the ledger after Verify has seen that the thing is
// gone: the ledger says that a thing is being released before the thing goes. ends holds Engine.mu
// meanwhile, or it could add to Engine.over after the ledger has forgotten the owner.
func (e *Engine) ends(d drift) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	thing := d.hold.Spec.String()
	o, ok := e.Ledger.Owner(d.owner.ID)
	if c := e.courses[d.owner.ID]; c != nil && c.taking {
		return false
	}
	if !ok || !e.stands(o) || !has(o.Settled(), d.hold.Spec) || slices.Contains(e.over[o.ID], thing) {
		return false
	}
	e.over[o.ID] = append(e.over[o.ID], thing)
	return true
}

// revives notes that a thing was taken. If a thing of the same name has ended before, the
// end of this one is news again.
func (e *Engine) revives(h hold.Hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if over, ok := e.over[h.Owner]; ok {
		e.over[h.Owner] = slices.DeleteFunc(over, func(s string) bool { return s == h.Spec.String() })
	}
}
