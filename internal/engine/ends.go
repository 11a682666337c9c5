package engine

import (
	"errors"
	"slices"

	"github.com/berth-net/berth/internal/hold"
)

// unended returns the drifts but those of things that have come to their end by
// themselves (hold.Kind.Ends), of which it tells once.
func (e *Engine) unended(drifts Missing) Missing {
	return slices.DeleteFunc(drifts, func(d drift) bool {
		k, err := e.kind(d.hold)
		if err != nil || !k.Ends || !errors.Is(d.err, hold.ErrGone) {
			return false
		}
		e.mu.Lock()
		told := slices.Contains(e.over[d.owner.ID], d.hold.Spec.String())
		if !told {
			e.over[d.owner.ID] = append(e.over[d.owner.ID], d.hold.Spec.String())
		}
		e.mu.Unlock()
		if !told {
			e.event(Ended, d.owner, k.Name(), d.err)
		}
		return true
	})
}
