package engine

import "time"

// How releases keep out of the way of what is more urgent.
const (
	// calmAfter is how long after an owner was taken others may be: where one pod
	// starts, more do.
	calmAfter = 100 * time.Millisecond
	// breath is how long a kind that is lazy, or yields to those who are being
	// taken, lets others have the locks and the processors before each call. The
	// answer to a DEL is on its way by then, and what many ends at once begin
	// with, their promises and cuts, is over.
	breath = 50 * time.Millisecond
	// jam is how many batches may wait for that.
	jam = 32
)

// rest waits before a call of a kind that is lazy or yields, unless somebody
// waits for a release, or too many do.
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
	case <-n.hurry: // of somebody who does not wait any more
	default:
	}
	n.e.mu.Unlock()
	n.gather(pause)
}

// gather lets holds come together for a kind's next batch, until somebody waits
// for them.
func (n *line) gather(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.hurry:
	case <-n.e.ctx.Done():
	}
}

// press keeps releases from making room for those who are being taken, until
// whoever waits for them leaves.
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
