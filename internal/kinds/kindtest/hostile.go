package kindtest

import (
	"slices"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/hold"
)

// besides is how often the check runs cuts beside releases. Most of these runs do not hit
// the moment in which the two could harm each other.
const besides = 20

// cutBesideRelease: a cut that failed may be tried again while the hold is being released. A
// hold for which Release has returned nil is gone, even if a cut came in between.
func cutBesideRelease(tb testing.TB, k Kind) {
	if k.Cut == nil || k.Alone {
		return
	}
	t := try{tb, k}
	unchanged := t.look()
	for range besides {
		hs := make([]hold.Hold, 4)
		for i := range hs {
			hs[i] = t.fresh()
			t.take(hs[i])
		}
		var group sync.WaitGroup
		cuts := make([]error, len(hs))
		for i, h := range hs {
			group.Go(func() { cuts[i] = k.Cut(t.Context(), h) })
		}
		errs := t.releaseErrs(hs...)
		group.Wait()
		for i, h := range hs {
			if errs[i] != nil || cuts[i] != nil {
				t.Fatalf("%s: the release says %v, the cut beside it %v", h, errs[i], cuts[i])
			}
		}
		t.verify(hs, slices.Repeat([]error{hold.ErrGone}, len(hs))...)
	}
	unchanged("after cuts beside releases, the world")
}

// disguised: somebody has renamed a thing, or changed it otherwise. Verify sees that, Find finds
// the thing under the name that it should have, Acquire puts it right, and Cut and Release treat it
// like any other.
func disguised(tb testing.TB, k Kind) {
	switch {
	case k.Disguise != nil:
	case k.Unseen:
		return
	case k.Undisguised == "":
		tb.Fatal("Verify compares, and the kind's test neither makes a thing differ (Disguise) nor says why not (Undisguised)")
	default:
		tb.Log("nothing can differ: " + k.Undisguised)
		return
	}
	t := try{tb, k}
	unchanged := t.look()
	all := []hold.Hold{t.fresh()}
	if !k.Alone {
		all = append(all, t.fresh())
	}
	for _, h := range all {
		t.take(h)
	}
	a := all[0]
	whole := t.look()
	k.Disguise(tb, a)
	t.verify(all, []error{hold.ErrChanged, nil}[:len(all)]...)
	t.verify([]hold.Hold{t.copy(a)}, hold.ErrChanged)
	if k.Find != nil {
		found, err := k.Find(t.Context(), nil)
		if err != nil {
			t.Fatalf("finding: %v", err)
		}
		seen := func(h hold.Hold) bool { return h.Owner == a.Owner && h.Spec.String() == a.Spec.String() }
		if !slices.ContainsFunc(found, seen) {
			t.Fatalf("%s is not found", a)
		}
	}
	t.take(a)
	whole("after it was put right, the world")
	t.verify(all, make([]error, len(all))...)
	for _, h := range all {
		k.Disguise(tb, h)
	}
	if k.Cut != nil {
		if err := k.Cut(t.Context(), a); err != nil {
			t.Fatalf("cutting %s off: %v", a, err)
		}
	}
	t.release(a)
	t.release(t.copy(all[len(all)-1]))
	t.verify(all, []error{hold.ErrGone, hold.ErrGone}[:len(all)]...)
	unchanged("after all are released, the world")
}
