package conform

import "slices"

// checks are all there are, in the order in which they run: what others stand on
// comes first.
var checks = slices.Concat(basicChecks, versionChecks, addChecks, errorChecks, delChecks, checkChecks, limitChecks, secondChecks, statusChecks, parallelChecks, chainChecks, leakChecks, killChecks, lifeChecks, manyChecks, gcChecks)

// basicChecks are those that every other needs.
var basicChecks = []Check{
	{
		Name: "basic/attach", Spec: "CNI 1.1.0, section 2, ADD and DEL",
		Says: "a container is attached by ADD and detached by DEL",
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
