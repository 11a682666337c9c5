package engine

import (
	"context"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// A cut is cheap, and may rest on something that others can take away, such as a
// table. Most holds are given back right behind the answer to a DEL. Those that are
// not, since they wait in their line or could not be given back, get the cut's
// second leg (hold.Kind.Sever).

const (
	// legAfter is how long a hold may wait for its release on one leg.
	legAfter = 50 * time.Millisecond
	// legsAtOnce is how many holds get the second leg together, and legPause how
	// long others have the kernel's locks in between.
	legsAtOnce = 16
	legPause   = 5 * time.Millisecond
)

// sever sees to it that what waits in a line is severed. Engine.mu is held.
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

// seversAtOnce is how many calls of Sever there are at once, all but one of which
// take longer than they should.
const seversAtOnce = 4

// severAll severs holds, and waits for that as long as a call should take: one that
// hangs keeps no others. What fails here is severed by its release, or by who hears
// that the table has gone. false: the engine is closing.
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
		ctx, cancel := context.WithTimeout(n.e.ctx, n.e.Try)
		defer cancel()
		_ = n.e.observed(n.kind.Name(), "sever", len(holds), func() error { return n.kind.Sever(ctx, holds) })
	})
	late := time.NewTimer(n.e.Try / 10)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
	case <-n.e.ctx.Done():
		return false
	}
	return true
}

// wait lets time pass; false: the engine is closing.
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

// oneLegged returns the next holds that are to be severed by now, and when to ask
// again; 0 ends the severing.
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
