package nettest

import (
	"errors"
	"testing"
)

func TestMust(t *testing.T) {
	if r := Record(t, func(t testing.TB) { Must(t, nil, errors.New("no")); t.Error("went on") }); r.Said != "no\n" || !r.Failed {
		t.Errorf("an error: %+v", r)
	}
	if r := Record(t, func(t testing.TB) { Must(t, nil, nil) }); r.Failed {
		t.Errorf("no error: %+v", r)
	}
}

func TestSame(t *testing.T) {
	empty, one := State{}, Files(t, t.TempDir()+"/..")
	if r := Record(t, func(t testing.TB) { Same(t, empty, one, "changed") }); r.Said != "changed:\n"+empty.Diff(one)+"\n" {
		t.Errorf("a difference: %+v", r)
	}
	if r := Record(t, func(t testing.TB) { Same(t, one, one, "changed") }); r.Failed {
		t.Errorf("no difference: %+v", r)
	}
}
