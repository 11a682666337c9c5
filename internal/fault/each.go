package fault

import "testing"

// Each runs a test with a fault in each of modes at every operation, or from the first-th on at
// each step-th, until a run has no fault left. It returns how many faults surfaced. At the
// first fault with which the test fails, it ends the test, and says where that was. what
// says in which run that is, and may be empty. Each run calls newPlan once, inside its synctest
// bubble if it has one.
func Each(t *testing.T, what string, modes []Mode, first, step int, run func(newPlan func() *Plan)) (points int) {
	t.Helper()
	for _, mode := range modes {
		for at := first; ; at += step {
			var plan *Plan
			run(func() *Plan { plan = New(at, mode); return plan })
			if t.Failed() {
				t.Fatalf("%s: %s at operation %d (%s)", what, mode, at, plan.Surfaced())
			}
			if plan.Surfaced() == "" {
				break
			}
			points++
		}
	}
	return points
}
