package conform

import "slices"

// checks are all checks, in the order in which they run: a check comes after the checks that it
// needs.
var checks = slices.Concat(basicChecks, versionChecks, addChecks, errorChecks, delChecks, checkChecks, limitChecks, detailChecks, inputChecks, delegateChecks, secondChecks, statusChecks, parallelChecks, chainChecks, rateChecks, portChecks, leakChecks, askChecks, killChecks, lifeChecks, manyChecks, gcChecks)

// basicChecks are the checks that all others need.
var basicChecks = []Check{
	{
		Name: "basic/attach", Level: Must, Spec: "CNI 1.1.0, section 2, ADD and DEL",
		Says: "ADD attaches a container, and DEL detaches it",
		run: func(t *T) {
			a := t.Attached()
			t.MustDel(a)
		},
	},
	{
		Name: "leak/add-del", Level: Should, Spec: "CNI 1.1.0, section 2, DEL; 0.4.0, Parameters, DEL",
		Says:  "DEL deletes what its ADD made, and undoes what it changed",
		Needs: []string{"basic/attach"}, run: leakAddDel,
	},
}
