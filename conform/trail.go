package conform

import (
	"slices"
	"time"

	"github.com/berth-net/berth/conform/oracle"
)

// trail follows what is left over many steps. What a step leaves is told at once:
// a later pod that is given the same address may tidy it up.
type trail struct {
	t      *T
	before oracle.State
	told   []string // what was left by steps before
	leaky  int      // steps that have left something
}

func (t *T) trailFrom(before oracle.State) *trail { return &trail{t: t, before: before} }

// mostSteps is how many steps have to go wrong until it is enough.
const mostSteps = 3

// look is at the end of a step. It waits, for the grace at most, until nothing is
// left of it; what still is, is a leak.
func (r *trail) look(step string) {
	var left []string
	for end := time.Now().Add(r.t.suite.Grace); ; time.Sleep(poll) {
		last := time.Now().After(end) // before it looks, which may take long
		left = slices.DeleteFunc(r.before.New(r.t.Seen()), func(line string) bool { return slices.Contains(r.told, line) })
		if len(left) == 0 {
			return
		}
		if last {
			break
		}
	}
	r.told = append(r.told, left...)
	r.t.Leakf("after %s are left:\n%s", step, some(left, 8))
	if r.leaky++; r.leaky == mostSteps {
		r.t.Leakf("... which is enough; the other steps were not tried")
		panic(stop{})
	}
}
