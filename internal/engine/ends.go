package engine

import (
	"errors"
	"slices"

	"github.com/berth-net/berth/internal/hold"
)

// unended returns the drifts but those of things that have come to their end by
// themselves (hold.Kind.Ends), of which it tells once. A thing of such a kind that is
// gone since its owner gives it back, or has not taken it yet, is no drift either, and
// nobody is told of it.
func (e *Engine) unended(drifts Missing) Missing {
	return slices.DeleteFunc(drifts, func(d drift) bool {
		k, err := e.kind(d.hold)
		if err != nil || !k.Ends || !errors.Is(d.err, hold.ErrGone) {
			return false
		}
		if e.ends(d) {
			e.event(Ended, d.owner, k.Name(), d.err)
		}
		return true
	})
}

// ends reports whether the end of a thing is news. The owner is looked at after the thing
// was: the ledger says that a thing is released before it is. Engine.mu is locked
// meanwhile, or what is told of an owner could be noted after the owner is forgotten.
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

// revives notes that a thing was taken: its end will be another one than that of a thing
// that was in its place before.
func (e *Engine) revives(h hold.Hold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if over, ok := e.over[h.Owner]; ok {
		e.over[h.Owner] = slices.DeleteFunc(over, func(s string) bool { return s == h.Spec.String() })
	}
}
