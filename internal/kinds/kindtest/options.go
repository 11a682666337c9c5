package kindtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// These checks are about what is optional for a kind. Each check runs only for kinds that say that they
// have the option.

// discovers: what Acquire discovers is in the hold's spec, and survives the ledger. An Acquire with a
// spec that lacks what was discovered discovers the same again. No two holds discover the same name.
// Verify says that a spec without its discovered names has changed: otherwise nobody would take the
// hold again, and no ledger would ever have the names.
func discovers(tb testing.TB, k Kind) {
	if !k.Discovers {
		return
	}
	t := try{tb, k}
	a := t.fresh()
	asked := t.copy(a)
	if names := namesOf(asked); len(names) > 0 {
		t.Fatalf("%s says %v before it is taken", a, names)
	}
	t.take(a)
	learned := t.copy(a)
	if !same(a.Spec, learned.Spec) {
		t.Fatalf("the ledger would make %+v of %+v", fields(learned.Spec), fields(a.Spec))
	}
	if a.Spec.String() != asked.Spec.String() {
		t.Fatalf("%s is called %s once it is taken", asked.Spec, a.Spec)
	}
	if _, ok := a.Spec.(hold.Namer); ok {
		if len(namesOf(a)) == 0 {
			t.Fatalf("%s is taken, and says no name", a)
		}
		t.verify([]hold.Hold{t.copy(asked)}, hold.ErrChanged)
	}
	for _, again := range []hold.Hold{t.copy(asked), t.copy(learned)} {
		t.take(again)
		if !same(again.Spec, learned.Spec) {
			t.Fatalf("taken again it is %+v, and was %+v", fields(again.Spec), fields(learned.Spec))
		}
	}
	if k.Alone {
		return
	}
	b := t.fresh()
	t.take(b)
	for _, name := range namesOf(b) {
		if slices.Contains(namesOf(a), name) {
			t.Fatalf("%s and %s are both given %s", a, b, name)
		}
	}
}

// namesOf returns the names that a hold's spec says.
func namesOf(h hold.Hold) []hold.Name {
	if n, ok := h.Spec.(hold.Namer); ok {
		return n.Names()
	}
	return nil
}

// ends: a thing that has come to its end by itself is gone, and Verify says that it has ended,
// even for a spec as the ledger had it before Acquire. Acquire does not begin such a thing again, and
// Release releases it like any other. No other thing has ended, nor has a thing that nobody has taken.
func ends(tb testing.TB, k Kind) {
	if !k.Ends {
		return
	}
	if k.End == nil {
		tb.Fatal("the kind says that its things end, and its test does not say how")
	}
	t := try{tb, k}
	unchanged := t.look()
	a, b := t.fresh(), t.fresh()
	asked := t.copy(a)
	if err := k.Verify(t.Context(), nil, []hold.Hold{a})[0]; errors.Is(err, hold.ErrEnded) {
		t.Fatalf("%s was never taken, and Verify says %v", a, err)
	}
	t.take(a)
	if !k.Alone {
		t.take(b)
	}
	k.End(tb, a)
	over := t.look()
	for _, h := range []hold.Hold{a, t.copy(a), asked} {
		t.verify([]hold.Hold{h}, hold.ErrEnded)
		if err := k.Acquire(t.Context(), h); err == nil {
			t.Fatalf("%s has ended, and is taken again", h)
		}
		over("after a take of what has ended, the world")
		t.verify([]hold.Hold{h}, hold.ErrEnded)
	}
	if !k.Alone {
		t.verify([]hold.Hold{b}, nil)
	}
	t.release(a, t.copy(a), b)
	t.verify([]hold.Hold{a, b}, hold.ErrGone, hold.ErrGone)
	unchanged("after all are released, the world")
}

// later: while the kind must not ask, Acquire and Release return a LaterError with the time from which
// the kind may ask again, and change nothing, and Verify does not say that a hold is gone or changed.
// Afterwards everything works as before.
func later(tb testing.TB, k Kind) {
	if k.Throttle == nil {
		return
	}
	t := try{tb, k}
	unchanged := t.look()
	a, b := t.fresh(), t.fresh()
	t.take(a)
	taken := t.look()
	until, over := k.Throttle(tb)
	over = sync.OnceFunc(over)
	defer over()
	tooEarly := func(doing string, err error) {
		t.Helper()
		var later *hold.LaterError
		if !errors.As(err, &later) || later.Err == nil {
			t.Fatalf("%s what must not be asked for now: %v, want a LaterError that says why", doing, err)
		}
		if later.At.Before(until) {
			t.Fatalf("%s may be tried again at %s, which is too early: %s", doing, later.At, until)
		}
	}
	tooEarly("taking", k.Acquire(t.Context(), b))
	tooEarly("releasing", t.releaseErrs(a)[0])
	t.blind(a)
	over()
	taken("after what came too early, the world")
	t.verify([]hold.Hold{a}, nil)
	if !k.Alone {
		t.take(b)
	}
	t.release(a, b)
	t.verify([]hold.Hold{a, b}, hold.ErrGone, hold.ErrGone)
	unchanged("after all are released, the world")
}

// blind fails if Verify, which cannot see the hold now, says that it is gone or changed.
func (t try) blind(h hold.Hold) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	for _, err := range t.Verify(ctx, nil, []hold.Hold{h}) {
		if errors.Is(err, hold.ErrGone) || errors.Is(err, hold.ErrChanged) {
			t.Fatalf("Verify cannot see %s, and says %v", h, err)
		}
	}
}

// A call that gets no answer has a context of brief, and may go on for soon after that.
const (
	brief = 20 * time.Millisecond
	soon  = time.Second
)

// limits: a kind that limits its calls ends them when their context ends, also if whatever the kind
// asks does not answer. The kind does not say that it has done or seen what it has not.
func limits(tb testing.TB, k Kind) {
	if k.Try == 0 && k.Look == 0 && k.Hang == nil {
		return
	}
	if k.Hang == nil {
		tb.Fatal("the kind limits its calls, and its test does not say what hangs")
	}
	t := try{tb, k}
	unchanged := t.look()
	a, b := t.fresh(), t.fresh()
	t.take(a)
	answer := sync.OnceFunc(k.Hang(tb))
	defer answer()
	calls := map[string]func(context.Context) error{
		"Acquire": func(ctx context.Context) error { return k.Acquire(ctx, b) },
		"Release": func(ctx context.Context) error { return k.Release(ctx, []hold.Hold{a})[0] },
		"Verify":  func(ctx context.Context) error { return k.Verify(ctx, nil, []hold.Hold{a})[0] },
	}
	if k.Find != nil {
		calls["Find"] = func(ctx context.Context) error { _, err := k.Find(ctx, nil); return err }
	}
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), brief)
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s has no answer, and says nil", name)
			}
		case <-time.After(brief + soon):
			t.Errorf("%s has not ended %s after its context", name, soon)
		}
		cancel()
	}
	if !t.Failed() {
		t.blind(a)
	}
	answer()
	if t.Failed() {
		return
	}
	t.verify([]hold.Hold{a}, nil)
	t.release(a, b)
	t.verify([]hold.Hold{a, b}, hold.ErrGone, hold.ErrGone)
	unchanged("after all are released, the world")
}

// waits: the agent mends a hold that other owners need for as long as they need it. Acquire has to take
// it again with the spec from the ledger, any number of times.
func waits(tb testing.TB, k Kind) {
	if !k.Waits {
		return
	}
	if k.Stage == hold.Tell {
		tb.Fatal("nobody stands on what only tells others")
	}
	if k.Ends {
		return // nobody mends a thing that has ended
	}
	if k.Lose == nil {
		tb.Fatal("the kind says that others stand on it, and its test does not say how it is lost")
	}
	t := try{tb, k}
	unchanged := t.look()
	h := t.fresh()
	t.take(h)
	for range 2 {
		k.Lose(tb, h)
		t.verify([]hold.Hold{h}, hold.ErrGone)
		h = t.copy(h)
		t.take(h)
		t.verify([]hold.Hold{h}, nil)
	}
	t.release(h)
	t.verify([]hold.Hold{h}, hold.ErrGone)
	unchanged("after it is released, the world")
}
