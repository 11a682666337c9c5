package views

import (
	"testing"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/deletions"
)

// An audit finds the deletions that the agent should have done long ago, and no others,
// whatever the wall clock says.
func TestLateDeletions(t *testing.T) {
	real := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const up = int64(time.Hour)
	for _, test := range []struct {
		name   string
		began  time.Duration // ago
		queued time.Duration // ago, after it has waited for an agent
		step   time.Duration // of the wall clock since
		boot   string
		late   bool
	}{
		{"just now", time.Second, 0, 0, "b", false},
		{"long ago", 2 * Stale, 2 * Stale, 0, "b", true},
		{"its DEL began long ago", 2 * Stale, time.Second, 0, "b", false},
		{"just now, and the clock is set forward", time.Second, 0, time.Hour, "b", false},
		{"long ago, and the clock is set back", daemon.LongestRequest + 2*Stale, daemon.LongestRequest + 2*Stale, -time.Hour, "b", true},
		{"in an earlier boot, by a clock that was ahead", time.Minute, time.Minute, -time.Hour, "a", true},
	} {
		a := &Views{Core: &daemon.Core{Place: daemon.Place{Boot: "b",
			Wall: func() time.Time { return real.Add(test.step) }, Boottime: func() int64 { return up }}}}
		e := deletions.Entry{Record: deletions.Record{Boot: test.boot, Started: up - int64(test.began)}, Written: real.Add(-test.queued)}
		if late := a.late(e); late != test.late {
			t.Errorf("%s: late is %t", test.name, late)
		}
	}
}
