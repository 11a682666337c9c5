package deletions

import (
	"errors"
	"reflect"
	"testing"

	"github.com/berth-net/berth/internal/root"
)

// Correct changes Cut and Again of a queued deletion in the same file. Other deletions stay as
// they are.
func TestCorrect(t *testing.T) {
	dir := root.Dir(t.TempDir())
	q, err := Open(dir)
	must(t, err)
	defer q.Close()
	later, another := example, example
	later.Started++
	another.Container = "another"
	must(t, errors.Join(Write(dir, example), Write(dir, later), Write(dir, another)))
	before, err := q.Pending()
	must(t, err)
	corrected := example
	corrected.Cut, corrected.Again = false, true
	must(t, Correct(dir, corrected))
	after, err := q.Pending()
	if err != nil || len(after) != len(before) {
		t.Fatalf("%+v, %v", after, err)
	}
	for i, e := range after {
		want := before[i].Record
		if want.Container == example.Container && want.Started == example.Started {
			want = corrected
		}
		if e.Name != before[i].Name || !reflect.DeepEqual(e.Record, want) {
			t.Errorf("%+v, not %+v", e, want)
		}
	}
	if names := files(t, dir); len(names) != len(before) {
		t.Errorf("left are %q", names)
	}
}
