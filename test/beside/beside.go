// Package beside compares what two programs do for the same pods, field by field: Multus, which is the original, and Berth. A difference is
// either in a table, with its reason, or a defect. So is a row of the table that has no difference any more.
package beside

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Look is what there is to see of a pod, field by field.
type Look map[string]string

// Refused is the field that says whether a program refuses a pod. If one of the two alone does, nothing else of the pod is compared.
const Refused = "refused"

// Difference is a field that is not the same, and why.
type Difference struct {
	Pods  []string // nil: some
	Field string
	Why   string
}

// Table has the differences that are known, and which of them have occurred.
type Table struct {
	rows []Difference
	used map[use]bool
}

// use is a row that has occurred, of a pod; "": of some pod.
type use struct {
	row int
	pod string
}

// NewTable makes the table of these differences.
func NewTable(rows []Difference) *Table {
	return &Table{rows: rows, used: map[use]bool{}}
}

// Compare compares these fields of a pod, in their order, and fails the test for each difference that the table lacks.
func (t *Table) Compare(test testing.TB, pod string, fields []string, original, own Look) {
	test.Helper()
	for _, field := range fields {
		diff := cmp.Diff(original[field], own[field])
		if diff == "" {
			continue
		}
		row := slices.IndexFunc(t.rows, func(d Difference) bool {
			return d.Field == field && (len(d.Pods) == 0 || slices.Contains(d.Pods, pod))
		})
		if row < 0 {
			test.Errorf("%s: %s (-Multus +Berth):\n%s", pod, field, diff)
		} else {
			t.used[use{row, pod}], t.used[use{row, ""}] = true, true
		}
		if field == Refused {
			return
		}
	}
}

// Occurred fails the test for each row of the table, and each of its pods, that no comparison has met.
func (t *Table) Occurred(test testing.TB) {
	test.Helper()
	for i, d := range t.rows {
		for _, pod := range append(slices.Clone(d.Pods), "") {
			if !t.used[use{i, pod}] {
				test.Errorf("there is no difference in %q of %q any more: %s", d.Field, pod, d.Why)
			}
		}
	}
}
