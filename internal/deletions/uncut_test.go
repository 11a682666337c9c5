package deletions

import (
	"errors"
	"reflect"
	"testing"

	"github.com/berth-net/berth/internal/root"
)

// Uncut queues a deletion without its Cut once, in the same file. Other deletions stay as they
// are.
func TestUncut(t *testing.T) {
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
	must(t, Uncut(dir, example))
	after, err := q.Pending()
	if err != nil || len(after) != len(before) {
		t.Fatalf("%+v, %v", after, err)
	}
	for i, e := range after {
		want := before[i].Record
		if want.Container == example.Container && want.Started == example.Started {
			want.Cut = false
		}
		if e.Name != before[i].Name || !reflect.DeepEqual(e.Record, want) {
			t.Errorf("%+v, not %+v", e, want)
		}
	}
	if names := files(t, dir); len(names) != len(before) {
		t.Errorf("left are %q", names)
	}
}
