package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

var errThrottled = errors.New("too many requests")

// throttled is a node in a bubble whose rules belong to an API. From a time on, and for a
// minute, the API answers that it was asked too often. asked counts the calls of that minute.
func throttled(t *testing.T, f func(t *testing.T, n *node, from func(), asked *int)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, nil, func(o *engine.Options) { o.Backoff, o.MaxBackoff = time.Millisecond, 10*time.Millisecond })
		var until time.Time
		asked := 0
		n.world.before = func(_ context.Context, op string, h hold.Hold) error {
			var err error
			n.world.set(func() {
				if h.Spec.Kind() == "rule" && time.Now().Before(until) {
					asked++
					err = fmt.Errorf("%s: %w", op, &hold.LaterError{At: until, Err: errThrottled})
				}
			})
			return err
		}
		f(t, n, func() { n.world.set(func() { until = time.Now().Add(time.Minute) }) }, &asked)
	})
}

// After an API was asked too often, not each owner that goes asks it again: the whole kind
// pauses, other kinds go on, and what waits goes when the time has come.
func TestThrottledKindPausesAsOne(t *testing.T) {
	throttled(t, func(t *testing.T, n *node, from func(), asked *int) {
		var ids []hold.ID
		for i := range 50 {
			o := owner("", fmt.Sprint(i), "wire", "rule")
			take(t, n, o)
			ids = append(ids, o.ID)
		}
		time.Sleep(time.Second)
		from()
		begun := time.Now()
		for _, id := range ids {
			must(t, n.Release(t.Context(), []hold.ID{id}))
		}
		must(t, n.WaitKind(t.Context(), "wire", ids...))
		if took := time.Since(begun); took > time.Second {
			t.Errorf("other kinds waited for %s", took)
		}
		n.Retry() // people may ask; the API is not asked for that
		time.Sleep(30 * time.Second)
		if *asked > 33 { // the calls that were under way already
			t.Errorf("the API was asked %d times while it had said later", *asked)
		}
		if owed := n.Owed(""); len(owed) == 0 || owed[0].Next.Sub(begun) < 59*time.Second || !errors.Is(owed[0].Err, errThrottled) {
			t.Errorf("owed: %v", owed)
		}
		must(t, n.Wait(t.Context(), ids...))
		if took := time.Since(begun); took > 62*time.Second {
			t.Errorf("all is released after %s", took)
		}
		wantResidue(t, n, empty)
	})
}

// A Take that needs a hold of a kind that pauses waits, if its context lasts long enough.
// Otherwise it fails at once.
func TestThrottledKindIsTakenLater(t *testing.T) {
	throttled(t, func(t *testing.T, n *node, from func(), asked *int) {
		from()
		begun := time.Now()
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			o := owner("", "hurried", "rule")
			if err := n.Take(ctx, o); err == nil || time.Since(begun) > time.Second {
				t.Errorf("take %d with 10 s: %v after %s", i, err, time.Since(begun))
			}
			cancel()
			if err := n.Wait(t.Context(), o.ID); i == 2 && err != nil {
				t.Error(err)
			}
			begun = time.Now()
			from()
		}
		*asked = 0
		begun = time.Now()
		o := owner("", "patient", "rule")
		take(t, n, o)
		if took := time.Since(begun); took < 59*time.Second || took > 61*time.Second || *asked > 1 {
			t.Errorf("taken after %s, and asked %d times", took, *asked)
		}
		release(t, n, o.ID)
		wantResidue(t, n, empty)
	})
}

// A LaterError whose time has passed, by this clock, is a failure like any other: the API is
// asked again after the back-off, not at once.
func TestLaterInThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, nil, func(o *engine.Options) { o.Backoff, o.MaxBackoff = time.Minute, time.Minute })
		o := owner("", "pod", "wire", "rule")
		take(t, n, o)
		asked := 0
		n.world.before = func(_ context.Context, op string, h hold.Hold) error {
			if op != "release" || h.Spec.Kind() != "rule" {
				return nil
			}
			if asked++; asked > 2 {
				return nil
			}
			return &hold.LaterError{At: time.Now().Add(-time.Hour), Err: errThrottled}
		}
		begun := time.Now()
		release(t, n, o.ID)
		if took := time.Since(begun); asked != 3 || took < time.Minute {
			t.Errorf("asked %d times in %s", asked, took)
		}
		wantResidue(t, n, empty)
	})
}
