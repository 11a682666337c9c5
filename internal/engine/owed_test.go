package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// hourly makes the waits between tries so long that no wait ends within a test.
func hourly(o *engine.Options) { o.Backoff, o.MaxBackoff = time.Hour, 8*time.Hour }

func tried(t *testing.T, n *node, ids ...hold.ID) {
	t.Helper()
	must(t, n.Tried(t.Context(), ids...))
}

// owes returns what an owner owes, if that is one hold with that many tries.
func owes(t *testing.T, n *node, id hold.ID, tries int) engine.Owed {
	t.Helper()
	var owed []engine.Owed
	nettest.Eventually(t, fmt.Sprintf("%s is tried %d times", id, tries), func() bool {
		owed = n.Owed(id)
		return len(owed) == 1 && owed[0].Tries == tries
	})
	return owed[0]
}

func TestRetryBringsTheNextTryForward(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	o, other := owner("", "a", "wire"), owner("", "b", "wire")
	take(t, n, o)
	take(t, n, other)
	var broken, running, most atomic.Int32
	broken.Store(1)
	let := make(chan struct{}, 10)
	n.world.before = func(_ context.Context, op string, h hold.Hold) error {
		if op != "release" || h.Owner != o.ID {
			return nil
		}
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		<-let
		if broken.Load() > 0 {
			return errors.New("device busy")
		}
		return nil
	}
	let <- struct{}{}
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	tried(t, n, o.ID)
	first := owes(t, n, o.ID, 1)
	if wait := time.Until(first.Next); wait < 20*time.Minute || wait > time.Hour {
		t.Errorf("the second try is in %v, want half of the backoff of 1h to all of it", wait)
	}
	if got := n.Retry(other.ID); got != 0 {
		t.Errorf("%d tries for an owner that owes nothing", got)
	}

	// Retry may ask for a try several times while the try is under way: the try is made once.
	if got := n.Retry(o.ID); got != 1 {
		t.Errorf("%d tries, want 1", got)
	}
	nettest.Eventually(t, "the try is under way", func() bool { return running.Load() == 1 })
	if n.Owed(o.ID)[0].Next.After(time.Now()) {
		t.Error("the try that is under way is shown as a later one")
	}
	if got := n.Retry() + n.Retry(o.ID, other.ID); got != 2 {
		t.Errorf("%d answers, want 2: the try counts each time", got)
	}
	let <- struct{}{}
	second := owes(t, n, o.ID, 2)
	if most.Load() != 1 {
		t.Errorf("%d tries at once", most.Load())
	}
	if wait := time.Until(second.Next); wait < 50*time.Minute || wait > 2*time.Hour {
		t.Errorf("the third try is in %v, want the backoff to have doubled", wait)
	}
	if !second.Since.Equal(first.Since) {
		t.Errorf("it is owed since %v, was %v", second.Since, first.Since)
	}
	if got := strings.Count(n.eventTypes(o.ID), "owed"); got != 2 {
		t.Errorf("%d events, want that of the first failure and that of the try that was asked for: %s", got, n.eventTypes(o.ID))
	}

	broken.Store(0)
	let <- struct{}{}
	n.Retry()
	must(t, n.Wait(t.Context(), o.ID))
	if got := n.Retry(); got != 0 {
		t.Errorf("%d tries when nothing is owed", got)
	}
}

// A forget that could not be written is owed, and tried again by hand, too. Options.Ending is called
// before the first try alone.
func TestRetryOfAForget(t *testing.T) {
	full := &fault.Disk{}
	var n *node
	var ending []engine.Event
	n = newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		full.Ledger = l
		return full, ks
	}, hourly, func(opts *engine.Options) {
		opts.Ending = func(evs []engine.Event) {
			for _, ev := range evs {
				if _, known := n.ledger.Owner(ev.Owner.ID); !known || ev.Type != engine.Released || ev.Past.Holds[0].Released.IsZero() {
					t.Errorf("the ledger is about to forget %+v, %v: it knows it: %v", ev.Owner, ev.Past, known)
				}
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			ending = append(ending, evs...)
		}
	})
	o := owner("", "a", "wire")
	take(t, n, o)
	full.Fill(2) // the promise is written, the forget is not
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	tried(t, n, o.ID)
	if owed := owes(t, n, o.ID, 1); owed.Hold.Spec != nil || owed.Hold.Owner != o.ID || owed.Err.Error() != "disk full" {
		t.Errorf("owed: %+v", owed)
	}
	n.Retry(o.ID)
	owes(t, n, o.ID, 2)
	if got := strings.Count(n.eventTypes(o.ID), "owed"); got != 2 {
		t.Errorf("%d events, want 2", got)
	}
	full.Clear()
	n.Retry()
	must(t, n.Wait(t.Context(), o.ID))
	if len(ending) != 1 || ending[0].Owner.ID != o.ID || n.past(o.ID).Forget == nil {
		t.Errorf("told before the ledger forgot it: %+v", ending)
	}
}

// After a restart, a hold is owed since the promise of its owner's release.
func TestOwedSurvivesARestart(t *testing.T) {
	n := newNodeOf(t, nil, hourly)
	o := owner("", "a", "wire")
	take(t, n, o)
	n.world.before = failing("release")
	must(t, n.Release(t.Context(), []hold.ID{o.ID}))
	tried(t, n, o.ID)
	promised, _ := n.ledger.Owner(o.ID)
	if owed := n.Owed(o.ID)[0]; owed.Since.Before(promised.Releasing) {
		t.Errorf("owed since %v, before its promise of %v", owed.Since, promised.Releasing)
	}
	n.stop()
	n.start(nil, hourly)
	must(t, n.Restore(t.Context()))
	tried(t, n, o.ID)
	if owed := owes(t, n, o.ID, 1); !owed.Since.Equal(promised.Releasing) {
		t.Errorf("after a restart it is owed since %v, want %v", owed.Since, promised.Releasing)
	}
	// A program without the kind shows that the hold is owed, and no next try: such a program never
	// tries the hold.
	n.stop()
	n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) { return l, ks[:1] }, hourly)
	must(t, n.Restore(t.Context()))
	if owed := owes(t, n, o.ID, 0); !owed.Since.Equal(promised.Releasing) || !owed.Next.IsZero() || n.Retry() != 0 {
		t.Errorf("what this program cannot try: %+v", owed)
	}
}

// One pod's hold fails or hangs for ever, while 100 other pods come and go. Each kind has its
// turn at that.
func TestTroubleBlocksNoOtherPod(t *testing.T) {
	for _, kind := range []string{"lease", "wire", "rule", "note"} {
		for _, how := range []string{"fails", "hangs", "hangs and cannot be stopped"} {
			t.Run(kind+" "+how, func(t *testing.T) {
				n := newNodeOf(t, nil, func(o *engine.Options) {
					o.Try = 20 * time.Millisecond
					if how == "hangs and cannot be stopped" {
						o.Try = 200 * time.Millisecond // after a tenth of it another call may begin
					}
				})
				all := []string{"lease", "wire", "rule", "note"}
				bad := owner("", "bad", all...)
				take(t, n, bad)
				heal, first := make(chan struct{}), make(chan struct{})
				var once sync.Once
				n.world.before = func(ctx context.Context, op string, h hold.Hold) error {
					if op != "release" || h.Owner != bad.ID || h.Spec.Kind() != kind {
						return nil
					}
					once.Do(func() { close(first) })
					switch how {
					case "hangs":
						select {
						case <-ctx.Done():
							return ctx.Err()
						case <-heal:
							return nil
						}
					case "hangs and cannot be stopped":
						<-heal
						return nil
					}
					select {
					case <-heal:
						return nil
					default:
						return errors.New("device busy")
					}
				}
				must(t, n.Release(t.Context(), []hold.ID{bad.ID}))
				<-first // or others may be in the very call that never returns
				comeAndGo(t, n, all)
				if _, there := n.ledger.Owner(bad.ID); !there {
					t.Error("what cannot be released is forgotten")
				}
				close(heal)
				n.Retry()
				must(t, n.Wait(t.Context(), bad.ID))
				wantResidue(t, n, empty)
			})
		}
	}
}

// comeAndGo takes and releases 100 owners, some at once.
func comeAndGo(t *testing.T, n *node, kinds []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 25 {
				o := owner("", fmt.Sprintf("%d-%d", w, i), kinds...)
				err := n.Take(ctx, o)
				if err == nil {
					err = n.Release(ctx, []hold.ID{o.ID})
				}
				if err == nil {
					err = n.Wait(ctx, o.ID)
				}
				if err != nil {
					t.Errorf("pod %d-%d: %v", w, i, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A hold that has hung is tried by itself from then on: it delays the other holds of its
// batch only once.
func TestHungHoldIsTriedApart(t *testing.T) {
	var mu sync.Mutex
	together := 0 // calls with the bad hold and others
	alone := make(chan struct{}, 1000)
	var bad hold.ID
	n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		ks = slices.Clone(ks)
		release := ks[1].Release
		ks[1].Release = func(ctx context.Context, hs []hold.Hold) []error {
			if !slices.ContainsFunc(hs, func(h hold.Hold) bool { return h.Owner == bad }) {
				return release(ctx, hs)
			}
			mu.Lock()
			if len(hs) > 1 {
				together++
			}
			mu.Unlock()
			<-ctx.Done()
			if len(hs) == 1 {
				alone <- struct{}{}
			}
			errs := make([]error, len(hs))
			for i := range errs {
				errs[i] = ctx.Err()
			}
			return errs
		}
		return l, ks
	}, func(o *engine.Options) { o.Try = 10 * time.Millisecond })
	var ids []hold.ID
	for i := range 8 { // a full batch
		o := owner("", fmt.Sprint(i), "wire")
		take(t, n, o)
		ids = append(ids, o.ID)
	}
	bad = ids[3]
	must(t, n.Release(t.Context(), ids))
	must(t, n.Wait(t.Context(), slices.Delete(slices.Clone(ids), 3, 4)...))
	for range 3 {
		<-alone
	}
	mu.Lock()
	defer mu.Unlock()
	if together > 1 {
		t.Errorf("the hold that hangs was tried %d times together with others", together)
	}
}
