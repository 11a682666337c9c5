package kindtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/kindtest/toy"
)

// after returns a function that calls f, and then the function then.
func after(f one, then func(hold.Hold)) one {
	return func(ctx context.Context, h hold.Hold) error {
		err := f(ctx, h)
		then(h)
		return err
	}
}

// deaf returns a function that calls f with a context that does not end.
func deaf(f one) one {
	return func(ctx context.Context, h hold.Hold) error { return f(context.WithoutCancel(ctx), h) }
}

// mapped returns a function that calls f, and changes the error of f by answer.
func mapped(f one, answer func(error) error) one {
	return func(ctx context.Context, h hold.Hold) error { return answer(f(ctx, h)) }
}

func numberOf(h hold.Hold) *int { return &h.Spec.(*toy.Spec).Number }

// eachRelease returns a kind's Release as a function for one hold.
func eachRelease(k *Kind) one {
	release := k.Release
	return func(ctx context.Context, h hold.Hold) error { return release(ctx, []hold.Hold{h})[0] }
}

// eachVerify returns a kind's Verify as a function for one hold.
func eachVerify(k *Kind) one {
	verify := k.Verify
	return func(ctx context.Context, h hold.Hold) error { return verify(ctx, nil, []hold.Hold{h})[0] }
}

// anew makes Acquire take a new thing even if the hold's thing is there.
func anew(k *Kind) {
	release := eachRelease(k)
	k.Acquire = before(k.Acquire, func(h hold.Hold) error { return release(context.Background(), h) })
}

// unlater returns a function that turns an error that says "too early" into another error.
func unlater(as func(*hold.LaterError) error) func(error) error {
	return func(err error) error {
		if later, ok := errors.AsType[*hold.LaterError](err); ok {
			return as(later)
		}
		return err
	}
}

// The tests plant optionFaults in the toy kind with options.
var optionFaults = []struct {
	check, name string
	option      func(*hold.Kind)
	plant       func(k *Kind)
}{
	{"discovers", "nothing is learned", nil, func(k *Kind) {
		k.Acquire = after(k.Acquire, func(h hold.Hold) { *numberOf(h) = 0 })
	}},
	{"discovers", "it is known before", nil, func(k *Kind) {
		spec := k.Spec
		k.Spec = func(t testing.TB, owner hold.ID) hold.Spec {
			s := spec(t, owner).(*toy.Spec)
			s.Number = 7
			return s
		}
	}},
	{"discovers", "another is learned each time", nil, anew},
	{"discovers", "all learn the same", nil, func(k *Kind) {
		k.Acquire = after(k.Acquire, func(h hold.Hold) { *numberOf(h) = 1 })
	}},
	{"discovers", "its name is learned, too", nil, func(k *Kind) {
		k.Acquire = after(k.Acquire, func(h hold.Hold) { h.Spec.(*toy.Spec).Place += "!" })
	}},
	{"discovers", "what nobody has written down is as it should be", nil, func(k *Kind) {
		k.Verify = hold.VerifyEach(mapped(eachVerify(k), func(err error) error {
			if errors.Is(err, hold.ErrChanged) {
				return nil
			}
			return err
		}))
	}},
	{"ends", "it is begun again", toy.Ends, func(k *Kind) {
		anew(k)
	}},
	{"ends", "what never was has ended", toy.Ends, func(k *Kind) {
		k.Verify = hold.VerifyEach(mapped(eachVerify(k), func(err error) error {
			if errors.Is(err, hold.ErrGone) {
				return hold.ErrEnded
			}
			return err
		}))
	}},
	{"ends", "its end is not told from what never was", toy.Ends, func(k *Kind) {
		k.Verify = hold.VerifyEach(mapped(eachVerify(k), func(err error) error {
			if errors.Is(err, hold.ErrEnded) {
				return hold.ErrGone
			}
			return err
		}))
	}},
	{"ends", "only the one who has taken it knows its end", toy.Ends, func(k *Kind) {
		verify := eachVerify(k)
		k.Verify = hold.VerifyEach(func(ctx context.Context, h hold.Hold) error {
			err := verify(ctx, h)
			if errors.Is(err, hold.ErrEnded) && *numberOf(h) == 0 {
				return hold.ErrGone
			}
			return err
		})
	}},
	{"ends", "its end is not seen", toy.Ends, func(k *Kind) {
		k.Verify = hold.VerifyEach(mapped(eachVerify(k), func(error) error { return nil }))
	}},
	{"ends", "its end is seen as a change", toy.Ends, func(k *Kind) {
		k.Verify = hold.VerifyEach(mapped(eachVerify(k), func(err error) error {
			if errors.Is(err, hold.ErrGone) {
				return hold.ErrChanged
			}
			return err
		}))
	}},
	{"ends", "what has ended is not released", toy.Ends, func(k *Kind) {
		verify := eachVerify(k)
		k.Release = hold.Each(before(eachRelease(k), func(h hold.Hold) error { return verify(context.Background(), h) }))
	}},
	{"ends", "nobody says how", toy.Ends, func(k *Kind) { k.End = nil }},
	{"later", "it is an error like any other", nil, func(k *Kind) {
		k.Acquire = mapped(k.Acquire, unlater(func(l *hold.LaterError) error { return l.Err }))
	}},
	{"later", "a release says nothing", nil, func(k *Kind) {
		k.Release = hold.Each(mapped(eachRelease(k), unlater(func(*hold.LaterError) error { return nil })))
	}},
	{"later", "it may be tried too early", nil, func(k *Kind) {
		k.Acquire = mapped(k.Acquire, unlater(func(l *hold.LaterError) error {
			return &hold.LaterError{At: l.At.Add(-time.Minute), Err: l.Err}
		}))
	}},
	{"later", "it does not say why", nil, func(k *Kind) {
		k.Acquire = mapped(k.Acquire, unlater(func(l *hold.LaterError) error { return &hold.LaterError{At: l.At} }))
	}},
	{"later", "what cannot be seen is gone", nil, func(k *Kind) {
		k.Verify = hold.VerifyEach(mapped(eachVerify(k), unlater(func(*hold.LaterError) error { return hold.ErrGone })))
	}},
	{"limits", "a take has no end", toy.Limited, func(k *Kind) { k.Acquire = deaf(k.Acquire) }},
	{"limits", "a release has no end", toy.Limited, func(k *Kind) { k.Release = hold.Each(deaf(eachRelease(k))) }},
	{"limits", "a look has no end", toy.Limited, func(k *Kind) { k.Verify = hold.VerifyEach(deaf(eachVerify(k))) }},
	{"limits", "what was not released is", toy.Limited, func(k *Kind) {
		k.Release = hold.Each(mapped(eachRelease(k), func(error) error { return nil }))
	}},
	{"limits", "what was not seen is gone", toy.Limited, func(k *Kind) {
		k.Verify = hold.VerifyEach(mapped(eachVerify(k), func(err error) error {
			if err != nil {
				return hold.ErrGone
			}
			return nil
		}))
	}},
	{"limits", "what was not found is not there", toy.Limited, func(k *Kind) {
		find := k.Find
		k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			found, _ := find(ctx, look)
			return found, nil
		}
	}},
	{"limits", "nobody says what hangs", toy.Limited, func(k *Kind) { k.Hang = nil }},
	{"waits", "it is not taken again", toy.Waits, func(k *Kind) {
		known := map[string]bool{}
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, h hold.Hold) error {
			if known[h.Spec.String()] {
				return nil
			}
			known[h.Spec.String()] = true
			return acquire(ctx, h)
		}
	}},
	{"waits", "it is taken again by the one who knows it alone", toy.Waits, func(k *Kind) {
		known := map[hold.Spec]bool{}
		k.Acquire = before(k.Acquire, func(h hold.Hold) error {
			if *numberOf(h) != 0 && !known[h.Spec] {
				return errors.New("unknown")
			}
			known[h.Spec] = true
			return nil
		})
	}},
	{"waits", "nobody can stand on it", toy.Waits, func(k *Kind) { k.Stage = hold.Tell }},
	{"waits", "nobody says how it is lost", toy.Waits, func(k *Kind) { k.Lose = nil }},
}

// The check that an optionFault is for sees the fault in a kind with options, and passes without the
// fault.
func TestOptionFaultsAreSeen(t *testing.T) {
	for _, fault := range optionFaults {
		t.Run(fault.check+"/"+fault.name, func(t *testing.T) {
			t.Parallel() // some of these checks wait long, and cost nothing meanwhile
			var options []func(*hold.Kind)
			if fault.option != nil {
				options = append(options, fault.option)
			}
			good, bad := granted(options...), granted(options...)
			fault.plant(&bad)
			sees(t, fault.check, good, false)
			sees(t, fault.check, bad, true)
		})
	}
}
