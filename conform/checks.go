package conform

import "slices"

// checks are all checks, in the order in which they run: a check comes after the checks that it
// needs.
var checks = slices.Concat(basicChecks, versionChecks, addChecks, errorChecks, delChecks, checkChecks, limitChecks, secondChecks, statusChecks, parallelChecks, chainChecks, rateChecks, portChecks, leakChecks, killChecks, lifeChecks, manyChecks, gcChecks)

// basicChecks are the checks that all others need.
var basicChecks = []Check{
	{
		Name: "basic/attach", Spec: "CNI 1.1.0, section 2, ADD and DEL",
		Says: "ADD attaches a container, and DEL detaches it",
		run: func(t *T) {
			a := t.Attached()
			t.MustDel(a)
		},
	},
	{
		Name: "leak/add-del", Spec: "CNI 1.1.0, section 2, DEL; 0.4.0, Parameters, DEL (both: it should)",
		Says:  "DEL deletes what its ADD made, and undoes what it changed",
		Needs: []string{"basic/attach"}, run: leakAddDel,
	},
}
