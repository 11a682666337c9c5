package engine

import (
	"testing"
	"time"
)

// A pause ends between two looks at the clock, while no call probes: the caller that waits for the
// pause goes on.
func TestPauseEndsBetweenTwoLooks(t *testing.T) {
	now := time.Now()
	end := now.Add(1500 * time.Microsecond)
	e := &Engine{now: func() time.Time { now = now.Add(time.Millisecond); return now }}
	n := &line{e: e, paused: end}
	if p, err := n.enter(t.Context()); p != nil || err != nil || !now.After(end) {
		t.Errorf("enter returns %v, %v at %s, and the pause ends at %s", p, err, now, end)
	}
}
