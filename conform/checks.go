package conform

import "slices"

// checks are all there are, in the order in which they run: what others stand on
// comes first.
var checks = slices.Concat(basicChecks, leakChecks)

// basicChecks are those that every other needs.
var basicChecks = []Check{
	{
		Name: "basic/attach", Spec: "CNI 1.1.0, section 4, ADD and DEL",
		Says: "a container is attached by ADD and detached by DEL",
		run: func(t *T) {
			a := t.NewAttachment()
			t.MustAdd(a)
			t.MustDel(a)
		},
	},
}

// leakChecks look for what is left.
var leakChecks = []Check{
	{
		Name: "leak/add-del", Spec: "CNI 1.1.0, section 4, DEL: release all associated resources",
		Says:  "a DEL undoes its ADD",
		Needs: []string{"basic/attach"},
		run: func(t *T) {
			before := t.Warm()
			a := t.NewAttachment()
			t.MustAdd(a)
			t.MustDel(a)
			t.WantNothingNew(before, "ADD and DEL")
		},
	},
}
