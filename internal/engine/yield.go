package engine

import "time"

// How releases keep out of the way of more urgent work.
const (
	// calmAfter is how long releases still yield after the last Take has ended: where one
	// pod starts, more are likely to follow.
	calmAfter = 100 * time.Millisecond
	// breath is how long a kind that is lazy, or that yields to Takes, leaves the locks and
	// the processors to others before each call. The answer to a DEL is on its way by then.
	// If many owners are released at once, their promises and cuts are over by then.
	breath = 50 * time.Millisecond
	// jam is how many full batches in a lane end the pause: the line has grown too long.
	jam = 32
)

// rest waits before a call of a kind that is lazy or that yields. It does not wait if a
// caller waits for releases, or if too many holds wait in the lane.
func (n *line) rest(a *lane, took time.Duration) {
	n.e.mu.Lock()
	var pause time.Duration
	switch {
	case a != &n.common || n.e.waiting > 0 || len(a.queue) >= jam*a.batch:
	case n.kind.Lazy:
		pause = max(breath, min(9*took, time.Second))
	case n.kind.Yield > 0 && n.e.yields:
		pause = breath
	}
	if pause == 0 {
		n.e.mu.Unlock()
		return
	}
	select {
	case <-n.hurry: // a token from a caller that does not wait any more
	default:
	}
	n.e.mu.Unlock()
	n.gather(pause)
}

// gather lets holds come together for a kind's next batch, until the pause is over or a
// caller is in a hurry.
func (n *line) gather(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.hurry:
	case <-n.e.ctx.Done():
	}
}

// press notes that a caller waits for releases, until the caller calls leave. Until then, releases
// do not pause (rest).
func (e *Engine) press() (leave func()) {
	e.mu.Lock()
	e.waiting++
	e.mu.Unlock()
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.waiting--
	}
}

// hasten ends the pauses of all kinds.
func (e *Engine) hasten() {
	for _, n := range e.lines {
		select {
		case n.hurry <- struct{}{}:
		default:
		}
	}
}
