package fault

import "testing"

// Each runs a test again and again, each time with one fault. For each of the modes, the fault is at
// operation `first`, then at `first+step`, and so on, until a fault does not surface. Each returns how many
// faults surfaced. If the test fails with a fault, Each ends the test, and says at which operation the
// fault was. `what` begins this message, and may be empty. Each run calls newPlan once, inside its
// synctest bubble if it has one.
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
