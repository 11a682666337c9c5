package conform

import (
	"cmp"
	"time"

	"github.com/berth-net/berth/conform/oracle"
)

// trail follows what is left over many steps, and knows after which one each
// thing was first seen. To wait for each step's remains would take the grace many
// times; here they all have until the end.
type trail struct {
	t      *T
	before oracle.State
	first  map[string]string // what was left: after which step
	steps  []string          // those, in their order
}

func (t *T) trailFrom(before oracle.State) *trail {
	return &trail{t: t, before: before, first: map[string]string{}}
}

// look is at the end of a step.
func (r *trail) look(step string) {
	for _, line := range r.before.New(r.t.Seen()) {
		if _, known := r.first[line]; !known {
			r.first[line] = step
			if len(r.steps) == 0 || r.steps[len(r.steps)-1] != step {
				r.steps = append(r.steps, step)
			}
		}
	}
}

// mostSteps is of how many steps the remains are told.
const mostSteps = 5

// end waits, for the grace at most, until nothing is left; what still is, is a
// leak.
func (r *trail) end() {
	var left []string
	for end := time.Now().Add(r.t.suite.Grace); ; time.Sleep(poll) {
		if left = r.before.New(r.t.Seen()); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	of := map[string][]string{}
	for _, line := range left {
		of[r.first[line]] = append(of[r.first[line]], line)
	}
	told := 0
	for _, step := range append(r.steps, "") { // "": what came after the last look
		switch {
		case of[step] == nil:
		case told == mostSteps:
			r.t.Leakf("... and more, after %d steps in all", len(of))
			return
		default:
			told++
			r.t.Leakf("after %s are left:\n%s", cmp.Or(step, "the last step"), some(of[step], 5))
		}
	}
}
