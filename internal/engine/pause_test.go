package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// After an API was asked too often, the owners that go do not each ask it again: the whole kind
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

// probed lets a hundred owners wait for a kind that pauses. The API says "later" in three
// pauses, one after the other. begin takes or releases one owner. As each pause ends, the API
// is asked once.
func probed(t *testing.T, begin func(t *testing.T, n *node, o hold.Owner), prepare bool) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeOf(t, nil, func(o *engine.Options) { o.Try = time.Minute })
		var closed atomic.Bool
		var asked, pauses int
		var until time.Time
		n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
			if h.Spec.Kind() != "rule" || !closed.Load() {
				return nil
			}
			time.Sleep(time.Second) // an answer takes time: all others would ask meanwhile
			var err error
			n.world.set(func() {
				switch asked++; {
				case time.Now().Before(until):
				case pauses == 3:
					return
				default:
					pauses++
					until = time.Now().Add(time.Minute)
				}
				err = &hold.LaterError{At: until, Err: errThrottled}
			})
			return err
		}
		all := make([]hold.Owner, 101)
		for i := range all {
			all[i] = owner("", fmt.Sprint(i), "rule")
			if prepare {
				take(t, n, all[i])
			}
		}
		time.Sleep(time.Second)
		closed.Store(true)
		var done sync.WaitGroup
		for i, o := range all {
			done.Go(func() { begin(t, n, o) })
			if i == 0 { // the first one brings the first pause
				time.Sleep(2 * time.Second)
			}
		}
		for range 2 {
			time.Sleep(30 * time.Second)
			n.world.set(func() {
				if asked != pauses {
					t.Errorf("in %d pauses the API was asked %d times", pauses, asked)
				}
			})
			time.Sleep(32 * time.Second)
		}
		done.Wait()
		var ids []hold.ID
		for _, o := range all {
			ids = append(ids, o.ID)
		}
		if asked != 3+len(all) {
			t.Errorf("in 3 pauses the API was asked %d times, beside once for each of %d owners", asked-len(all), len(all))
		}
		must(t, n.Release(t.Context(), ids))
		must(t, n.Wait(t.Context(), ids...))
		wantResidue(t, n, empty)
	})
}

// When a pause ends and the API still says "later", only one of the Takes that have waited asks the
// API.
func TestOneTakeProbes(t *testing.T) {
	probed(t, func(t *testing.T, n *node, o hold.Owner) { must(t, n.Take(t.Context(), o)) }, false)
}

// When a pause ends and the API still says "later", only one of the releases that have waited asks
// the API.
func TestOneReleaseProbes(t *testing.T) {
	probed(t, func(t *testing.T, n *node, o hold.Owner) {
		must(t, n.Release(t.Context(), []hold.ID{o.ID}))
		must(t, n.Wait(t.Context(), o.ID))
	}, true)
}

// A probe that gets no answer keeps the other calls waiting only for a while: then another call
// probes. A probe that its caller gives up says nothing of the kind: again only one call probes.
func TestProbeWithoutAnswer(t *testing.T) {
	throttled(t, func(t *testing.T, n *node, from func(), asked *int) {
		says := n.world.before
		let, hangs, beside := make(chan struct{}), 0, 0
		n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
			if err := says(ctx, op, h); err != nil {
				return err
			}
			var hang bool
			n.world.set(func() {
				if hang = h.Spec.Kind() == "rule" && hangs < 2; hang {
					hangs++
				} else if hangs == 2 {
					beside++
				}
			})
			if hang {
				select {
				case <-let:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
		from()
		begun := time.Now()
		givenUp, stop := context.WithTimeout(t.Context(), 61*time.Second)
		defer stop()
		var all sync.WaitGroup
		all.Go(func() {
			if err := n.Take(givenUp, owner("", "given up", "rule")); err == nil {
				t.Error("it is taken by a call that was given up")
			}
		})
		time.Sleep(60*time.Second + time.Second/2) // by now this Take probes
		for i := range 20 {
			all.Go(func() { take(t, n, owner("", fmt.Sprint(i), "rule")) })
		}
		time.Sleep(time.Until(begun.Add(62 * time.Second)))
		n.world.set(func() {
			if hangs != 2 || beside > 0 {
				t.Errorf("after a probe that was given up %d hang and %d do not, want one more that hangs", hangs, beside)
			}
		})
		time.Sleep(3 * time.Second) // a tenth of Try, and less than all of it
		n.world.set(func() {
			if beside == 0 {
				t.Error("nobody asks beside a probe that hangs")
			}
		})
		close(let)
		all.Wait()
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
