package turn

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// No more than Most callers wait behind a turn that does not end, and none waits longer than
// its context lasts. Callers who have given up take no place. The others get their turns in
// order.
func TestLongTurnKeepsFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, key = 8, "c"
		k := &Turns[string]{Most: most}
		unlock, err := k.Take(t.Context(), key)
		must(t, err)
		before := runtime.NumGoroutine()
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := k.Take(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("behind one that hangs: %v", err)
			}
			cancel()
		}
		synctest.Wait()
		if left := runtime.NumGoroutine() - before; left > 5 {
			t.Errorf("1000 that gave up have left %d goroutines", left)
		}
		turns := make(chan int, most)
		for i := range most {
			go func() {
				unlock, err := k.Take(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				turns <- i
				unlock()
			}()
			synctest.Wait()
		}
		_, err = k.Take(t.Context(), key)
		if !errors.Is(err, ErrCrowded) {
			t.Errorf("one too many: %v", err)
		}
		unlock()
		for i := range most {
			if got := <-turns; got != i {
				t.Errorf("turn %d is that of number %d", i, got)
			}
		}
		synctest.Wait()
		if len(k.lines) > 0 {
			t.Errorf("%d keys are left", len(k.lines))
		}
	})
}

// If a turn comes at the moment when its caller gives up, it passes on to the next caller.
func TestTurnThatNobodyTakes(t *testing.T) {
	const key = "c"
	k := &Turns[string]{}
	for range 2000 {
		unlock, err := k.Take(t.Context(), key)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if unlock, err := k.Take(ctx, key); err == nil {
				unlock()
			}
		}()
		go cancel()
		unlock()
		<-ended
	}
	if len(k.lines) > 0 {
		t.Errorf("%d keys are taken by nobody", len(k.lines))
	}
}

// Callers that wait aside keep no place, and have one again when their turn has come. A caller
// that cannot wait aside, cannot enter again, or is told to end takes no turn.
func TestTurnAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const key = "c"
		k := &Turns[string]{Aside: true}
		ended, why := make(chan struct{}), errors.New("the end")
		enterErr, full := error(nil), false
		var did []string
		ctx := WithPlace(t.Context(), Place{
			Leave: func() (func(), bool) {
				did = append(did, "leave")
				return func() { did = append(did, "done") }, !full
			},
			Enter: func(context.Context) error { did = append(did, "enter"); return enterErr },
			Ended: ended, Why: why,
		})
		unlock, err := k.Take(ctx, key)
		must(t, err)
		if len(did) > 0 {
			t.Errorf("without a wait: %q", did)
		}
		wait := func(before func()) (func(), error) {
			did = nil
			var done func()
			var err error
			waited := make(chan struct{})
			go func() { done, err = k.Take(ctx, key); close(waited) }()
			synctest.Wait()
			before()
			<-waited
			return done, err
		}
		want := func(what string, err, wanted error, calls ...string) {
			t.Helper()
			if !errors.Is(err, wanted) || !slices.Equal(did, calls) {
				t.Errorf("%s: %v, %q", what, err, did)
			}
		}
		unlock2, err := wait(func() {
			if !slices.Equal(did, []string{"leave"}) {
				t.Errorf("while it waits: %q", did)
			}
			unlock()
		})
		must(t, err)
		want("its turn has come", err, nil, "leave", "enter", "done")
		full = true
		_, err = wait(func() {})
		want("too many wait", err, ErrCrowded, "leave", "done")
		full, enterErr = false, errors.New("no place")
		_, err = wait(func() { unlock2() })
		want("no place again", err, enterErr, "leave", "enter", "done")
		unlock, err = k.Take(ctx, key) // nobody has the turn
		must(t, err)
		_, err = wait(func() { close(ended) })
		want("told to end", err, why, "leave", "done")
		unlock()
		synctest.Wait()
		if len(k.lines) > 0 {
			t.Errorf("%d keys are left", len(k.lines))
		}
	})
}

// One is a single turn for all callers.
func TestOne(t *testing.T) {
	var o One
	done, err := o.Take(t.Context())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.Take(ctx); !errors.Is(err, context.Canceled) || !o.Taken() {
		t.Errorf("beside somebody: %v, taken %t", err, o.Taken())
	}
	done()
	if o.Taken() {
		t.Error("it is taken by nobody")
	}
}

var must = nettest.Must
