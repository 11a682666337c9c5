package kindtest

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// leaveOtherOwner: to release one owner's hold leaves the other owner's hold alone, whether anybody has
// taken the first hold or not.
func leaveOtherOwner(tb testing.TB, k Kind) {
	t := try{tb, k}
	a, b := t.fresh(), t.fresh()
	t.take(a)
	if k.Alone {
		unchanged := t.look()
		if err := k.Acquire(t.Context(), b); !errors.Is(err, hold.ErrForeign) {
			t.Fatalf("taking %s while %s is there: %v", b, a, err)
		}
		unchanged("after another owner's failed take, the world")
	} else {
		t.take(b)
	}
	t.release(b)
	t.verify([]hold.Hold{a}, nil)
	unchanged := t.look()
	t.release(b, t.fresh())
	t.verify([]hold.Hold{a}, nil)
	unchanged("after others' releases, the world")
}

// leaveForeign: a kind does not replace, cut off or release a thing in a hold's place that is not
// Berth's.
func leaveForeign(tb testing.TB, k Kind) {
	if k.Foreign == nil {
		tb.Log("no foreign thing can be in its place, says the kind's test")
		return
	}
	t := try{tb, k}
	h := t.fresh()
	intact := k.Foreign(tb, h)
	still := func(after string) {
		t.Helper()
		if err := intact(); err != nil {
			t.Fatalf("after %s, the foreign thing: %v", after, err)
		}
	}
	unchanged := t.look()
	still("it was put there")
	if err := k.Acquire(t.Context(), h); err == nil {
		t.Fatalf("%s is taken although its place is another's", h)
	}
	still("a failed take")
	if err := k.Verify(t.Context(), nil, []hold.Hold{h})[0]; err == nil {
		t.Fatalf("Verify takes the foreign thing for %s", h)
	}
	if k.Cut != nil {
		// Cut may return an error, but must not touch the foreign thing.
		_ = k.Cut(t.Context(), h)
		still("a cut")
	}
	t.release(h)
	still("a release")
	if k.Find != nil { // a sweep releases the things that it finds and that no owner needs
		found, err := k.Find(t.Context(), nil)
		nettest.Must(t, err)
		for _, f := range found {
			if f.Owner == h.Owner {
				t.release(f)
			}
		}
		still("a release of what Find says is the owner's")
	}
	unchanged("after all that, the world")
}

// batch: one call of Verify or Release may have holds that are there and holds that are not,
// in any order.
func batch(tb testing.TB, k Kind) {
	t := try{tb, k}
	if got := len(k.Verify(t.Context(), nil, nil)) + len(k.Release(t.Context(), nil)); got != 0 {
		t.Fatalf("Verify and Release answer %d times to no hold", got)
	}
	unchanged := t.look()
	hs := []hold.Hold{t.fresh(), t.fresh(), t.fresh(), t.fresh()}
	t.take(hs[1])
	if k.Alone {
		t.verify(hs[:2], hold.ErrGone, nil)
		t.release(hs[0], hs[1])
		t.verify(hs[:2], hold.ErrGone, hold.ErrGone)
		unchanged("after the batch, the world")
		return
	}
	t.take(hs[3])
	t.verify(hs, hold.ErrGone, nil, hold.ErrGone, nil)
	slices.Reverse(hs)
	t.verify(hs, nil, hold.ErrGone, nil, hold.ErrGone)
	t.release(hs...)
	t.verify(hs, hold.ErrGone, hold.ErrGone, hold.ErrGone, hold.ErrGone)
	unchanged("after the batch, the world")
}

// atOnce: a kind's functions may be called at once for different owners.
func atOnce(tb testing.TB, k Kind) {
	if k.Alone {
		return
	}
	t := try{tb, k}
	unchanged := t.look()
	hs := make([]hold.Hold, 8)
	for i := range hs {
		hs[i] = t.fresh()
	}
	answers := make([]error, len(hs))
	each := func(doing string, f func(h hold.Hold) error) {
		t.Helper()
		var group sync.WaitGroup
		for i, h := range hs {
			group.Go(func() { answers[i] = f(h) })
		}
		group.Wait()
		for i, err := range answers {
			if err != nil {
				t.Fatalf("%s %s beside others: %v", doing, hs[i], err)
			}
		}
	}
	each("taking", func(h hold.Hold) error { return k.Acquire(t.Context(), h) })
	t.verify(hs, make([]error, len(hs))...)
	each("verifying", func(h hold.Hold) error { return k.Verify(t.Context(), nil, []hold.Hold{h})[0] })
	each("releasing", func(h hold.Hold) error { return k.Release(t.Context(), []hold.Hold{h})[0] })
	t.verify(hs, slices.Repeat([]error{hold.ErrGone}, len(hs))...)
	unchanged("after all are released, the world")
}
