package nodetest

import (
	"context"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/poolroute"
)

// routes is the poolroute kind.
type routes struct {
	*doors
	metric uint32
}

func (r routes) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(poolroute.Spec) },
		Acquire: r.acquire,
		Verify:  hold.VerifyEach(r.verify),
		Release: hold.Each(r.release),
		Batch:   32,
		Find:    r.find,
	}
}

func (r routes) acquire(_ context.Context, h hold.Hold) error {
	s := *h.Spec.(*poolroute.Spec)
	return r.step("route", "add "+s.String(), func() error {
		if ours, there := r.pools[s]; there && !ours {
			return fmt.Errorf("%s: %w", h.Spec, hold.ErrForeign)
		}
		r.pools[s] = true
		return nil
	})
}

func (r routes) verify(_ context.Context, h hold.Hold) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pools[*h.Spec.(*poolroute.Spec)] {
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrGone)
	}
	return nil
}

func (r routes) release(_ context.Context, h hold.Hold) error {
	s := *h.Spec.(*poolroute.Spec)
	return r.step("route", "delete "+s.String(), func() error {
		if r.pools[s] {
			delete(r.pools, s)
		}
		return nil
	})
}

func (r routes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []hold.Hold
	for s, ours := range r.pools {
		if ours && s.Metric == r.metric {
			all = append(all, hold.Hold{Spec: &s})
		}
	}
	return all, nil
}
