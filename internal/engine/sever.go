package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// A cut is cheap, and may depend on something that others can take away, such as a table.
// Most holds are released right after the answer to a DEL, and need no more. The others,
// which have to wait in their line or could not be released, get the cut's second leg
// (hold.Kind.Sever), which depends on nothing that others can take away.

const (
	// legAfter is how long a hold may wait for its release before it gets the second leg.
	legAfter = 50 * time.Millisecond
	// legsAtOnce is how many holds get the second leg in one call. legPause is the pause
	// between two calls, in which others can have the kernel's locks.
	legsAtOnce = 16
	legPause   = 5 * time.Millisecond
)

// sever starts a goroutine that severs the holds in n.legs when they are due, if none runs.
// Engine.mu is held.
func (n *line) sever() {
	if n.severs {
		return
	}
	n.severs = true
	n.e.spawn(func() {
		for pause := legAfter; n.wait(pause); {
			var holds []hold.Hold
			if holds, pause = n.oneLegged(); pause == 0 {
				return
			}
			if len(holds) > 0 && !n.severAll(holds) {
				return
			}
		}
	})
}

// seversAtOnce is how many calls of a kind's Sever run at once, at most. A call begins beside a
// running call only after the running call has taken longer than it should.
const seversAtOnce = 4

// severAll severs holds, and waits for the call for a tenth of its limit: a call that
// hangs delays no others. A failed call is not tried again: the holds' release ends what is left of
// them, and the code that notices a missing table severs all owners that are cut off.
// severAll returns false if the engine is closing.
func (n *line) severAll(holds []hold.Hold) bool {
	select {
	case n.severing <- struct{}{}:
	case <-n.e.ctx.Done():
		return false
	}
	ended := make(chan struct{})
	n.e.background(func() {
		defer close(ended)
		defer func() { <-n.severing }()
		ctx, cancel := context.WithTimeout(n.e.ctx, n.try())
		defer cancel()
		_ = n.e.observed(n.kind.Name(), "sever", len(holds), func() error { return n.kind.Sever(ctx, holds) })
	})
	late := time.NewTimer(n.try() / 10)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
	case <-n.e.ctx.Done():
		return false
	}
	return true
}

// severHolds severs those of an owner's holds whose kind has a Sever. A later Acquire of a hold
// undoes that.
func (e *Engine) severHolds(ctx context.Context, holds []hold.Hold) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutting)
	defer cancel()
	var errs []error
	for _, h := range holds {
		k, err := e.kind(h)
		if err != nil || k.Sever == nil {
			continue
		}
		sever := func(ctx context.Context, h hold.Hold) error { return k.Sever(ctx, []hold.Hold{h}) }
		if err := e.act(ctx, k, "sever", h, sever); err != nil {
			errs = append(errs, fmt.Errorf("severing %s: %w", h.Spec, err))
		}
	}
	return errors.Join(errs...)
}

// wait waits for the duration d. It returns false if the engine is closing.
func (n *line) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-n.e.ctx.Done():
		return false
	}
}

// oneLegged returns the next holds that are due to be severed, and after which time to ask again.
// If again is 0, no holds are left, and the goroutine that severs ends.
func (n *line) oneLegged() (holds []hold.Hold, again time.Duration) {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	for len(n.legs) > 0 && len(holds) < legsAtOnce {
		j := n.legs[0]
		if !j.l.state[j.i].released {
			if early := time.Until(j.due); early > 0 {
				return holds, max(early, legPause)
			}
			holds = append(holds, j.l.owner.Holds[j.i])
		}
		n.legs = n.legs[1:]
	}
	if len(holds) == 0 {
		n.legs, n.severs = nil, false
		return nil, 0
	}
	return holds, legPause
}
