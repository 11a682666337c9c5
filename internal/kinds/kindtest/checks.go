package kindtest

import (
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

// takeTwice: to take a thing that is there already, and is the owner's, succeeds and changes nothing.
func takeTwice(tb testing.TB, k Kind) {
	t := try{tb, k}
	h := t.fresh()
	t.verify([]hold.Hold{h}, hold.ErrGone)
	asked := t.copy(h)
	t.take(h)
	t.verify([]hold.Hold{h}, nil)
	if !k.Discovers && !same(asked.Spec, t.copy(h).Spec) {
		t.Fatalf("Acquire fills in its spec, and the kind does not say that it discovers")
	}
	unchanged := t.look()
	t.take(h)
	unchanged("after the second take, the world")
	t.verify([]hold.Hold{h}, nil)
	t.take(t.copy(h)) // as after a restart
	unchanged("after a restart's take, the world")
	t.release(h)
	t.verify([]hold.Hold{h}, hold.ErrGone)
}

// releaseTwice: what is released is gone without a trace, and to release it again succeeds
// and changes nothing.
func releaseTwice(tb testing.TB, k Kind) {
	t := try{tb, k}
	h := t.fresh()
	unchanged := t.look()
	t.take(h)
	t.release(h)
	t.verify([]hold.Hold{h}, hold.ErrGone)
	unchanged("from before the take to after the release, the world")
	t.release(h)
	t.verify([]hold.Hold{h}, hold.ErrGone)
	unchanged("after the second release, the world")
}

// releaseUntaken: an owner may be released before all of its holds are taken.
func releaseUntaken(tb testing.TB, k Kind) {
	t := try{tb, k}
	h := t.fresh()
	unchanged := t.look()
	t.release(h)
	t.verify([]hold.Hold{h}, hold.ErrGone)
	unchanged("after the release of what was not taken, the world")
}

// releaseFromRecord: an agent that was killed right after Acquire has only the spec from the
// ledger, as it was before Acquire. That is enough to release the hold.
func releaseFromRecord(tb testing.TB, k Kind) {
	t := try{tb, k}
	h := t.fresh()
	unchanged := t.look()
	record := t.copy(h)
	t.take(h)
	t.release(record)
	t.verify([]hold.Hold{h}, hold.ErrGone)
	unchanged("after the release of what its record says, the world")
}

// find: Find finds a taken thing by its stamp, as a hold that Release accepts, and finds nothing that
// nobody has taken.
func find(tb testing.TB, k Kind) {
	if k.Find == nil {
		return
	}
	t := try{tb, k}
	a, b := t.fresh(), t.fresh()
	if !k.Alone && a.Spec.String() == b.Spec.String() {
		t.Fatalf("two things are called %s", a.Spec)
	}
	found := func(owner hold.ID) (hold.Hold, int) {
		t.Helper()
		all, err := k.Find(t.Context(), nil)
		if err != nil {
			t.Fatalf("finding: %v", err)
		}
		all = slices.DeleteFunc(all, func(h hold.Hold) bool { return h.Owner != owner })
		if len(all) == 0 {
			return hold.Hold{}, 0
		}
		return all[0], len(all)
	}
	if h, n := found(a.Owner); n != 0 {
		t.Fatalf("%s is found before it is taken", h)
	}
	t.take(a)
	if !k.Alone {
		t.take(b)
	}
	h, n := found(a.Owner)
	if n != 1 {
		t.Fatalf("%s is found %d times", a, n)
	}
	if h.Spec == nil || h.Spec.Kind() != t.Name() {
		t.Fatalf("%s is found as a %v", a, h.Spec)
	}
	if h.Spec.String() != a.Spec.String() {
		t.Fatalf("%s is found under another name, %s", a.Spec, h.Spec)
	}
	t.release(t.copy(h))
	t.verify([]hold.Hold{a}, hold.ErrGone)
	if _, n := found(a.Owner); n != 0 {
		t.Fatalf("%s is found after it is released", a)
	}
	if !k.Alone {
		t.verify([]hold.Hold{b}, nil)
	}
}

// cut: Cut may come before the hold is taken, again, and after the hold is released. Release releases a
// hold that was cut off like any other, and Cut cuts no other hold off.
func cut(tb testing.TB, k Kind) {
	if k.Cut == nil {
		return
	}
	t := try{tb, k}
	unchanged := t.look()
	a, b := t.fresh(), t.fresh()
	cutOff := func(h hold.Hold, when string) {
		t.Helper()
		if err := k.Cut(t.Context(), h); err != nil {
			t.Fatalf("cutting %s off %s: %v", h, when, err)
		}
	}
	cutOff(a, "before it is taken")
	unchanged("after a cut of what was not taken, the world")
	t.take(a)
	if !k.Alone {
		t.take(b)
	}
	cutOff(a, "")
	cutOff(t.copy(a), "again")
	if !k.Alone {
		t.verify([]hold.Hold{b}, nil)
	}
	if k.Sever != nil {
		unsevered := t.copy(b)
		if err := k.Sever(t.Context(), []hold.Hold{a, t.copy(a), t.fresh()}); err != nil {
			t.Fatalf("severing %s: %v", a, err)
		}
		if !k.Alone {
			t.verify([]hold.Hold{unsevered}, nil)
		}
	}
	t.release(a, b)
	t.verify([]hold.Hold{a, b}, hold.ErrGone, hold.ErrGone)
	cutOff(a, "after it is released")
	unchanged("after a cut and a release, the world")
}
