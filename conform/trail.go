package conform

import (
	"slices"
	"time"

	"github.com/berth-net/berth/conform/oracle"
)

// trail looks for leaks over many steps. It reports the remains of a step right after the step,
// since a later pod with the same address may tidy them up.
type trail struct {
	t      *T
	before oracle.State
	told   []string // the things of earlier steps that the trail has reported
	leaky  int      // steps that have left something
}

func (t *T) trailFrom(before oracle.State) *trail { return &trail{t: t, before: before} }

// mostSteps is the number of bad steps after which a check ends.
const mostSteps = 3

// A check calls look at the end of a step. look waits, for the grace at most, until nothing of the step
// is left. Anything that is left after that is a leak.
func (r *trail) look(step string) {
	var left []string
	for end := time.Now().Add(r.t.suite.Grace); ; time.Sleep(poll) {
		last := time.Now().After(end) // taken before Seen, which may take long
		left = slices.DeleteFunc(r.before.New(r.t.Seen()), func(line string) bool { return slices.Contains(r.told, line) })
		if len(left) == 0 {
			return
		}
		if last {
			break
		}
	}
	r.told = append(r.told, left...)
	r.t.Leakf("after %s these are left:\n%s", step, some(left, 8))
	if r.leaky++; r.leaky == mostSteps {
		r.t.Leakf("after %d bad steps the suite left out the other steps", mostSteps)
		panic(stop{})
	}
}
