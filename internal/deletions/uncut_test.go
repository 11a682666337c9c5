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
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	later, another := example, example
	later.Started++
	another.Container = "another"
	if err := errors.Join(Write(dir, example), Write(dir, later), Write(dir, another)); err != nil {
		t.Fatal(err)
	}
	before, err := q.Pending()
	if err != nil {
		t.Fatal(err)
	}
	if err := Uncut(dir, example); err != nil {
		t.Fatal(err)
	}
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
