package engine_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

// A look at one kind hangs, and may or may not heed its context: a kind that asks a cloud may
// hang for minutes. The look that hangs keeps no other kind from being mended, and does not count
// as an answer that all is well.
func TestHangingLookKeepsNoOtherKind(t *testing.T) {
	for _, how := range []string{"verify", "verify, deaf", "find", "find, deaf"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				heal := make(chan struct{})
				hang := func(ctx context.Context) {
					if strings.HasSuffix(how, "deaf") {
						<-heal
						return
					}
					select {
					case <-ctx.Done():
					case <-heal:
					}
				}
				n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
					if strings.HasPrefix(how, "verify") {
						ks[0].Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
							hang(ctx)
							return make([]error, len(hs)) // as if all were well
						}
					} else {
						find := ks[0].Find
						ks[0].Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) { hang(ctx); return find(ctx, look) }
					}
					return l, ks
				})
				o := owner("", "a", "lease", "rule")
				take(t, n, o)
				n.world.set(func() { delete(n.world.things, "rule "+string(o.ID)) })
				begun := time.Now() // of the bubble's clock
				rep, _ := n.Sweep(t.Context())
				if took := time.Since(begun); took > 30*time.Second {
					t.Errorf("the sweep took %v", took)
				}
				if n.world.residue() == empty || !n.world.has(o.Holds[1]) {
					t.Error("the rule is not mended")
				}
				if len(rep.Findings) != 2 {
					t.Errorf("findings %v, want that the rule is missing, and that the lease could not be seen", rep.Findings)
				}
				for range 100 { // each of which would cost a goroutine
					n.Sweep(t.Context())
				}
				if grown := runtime.NumGoroutine(); grown > 60 {
					t.Errorf("%d goroutines after 100 sweeps", grown)
				}
				close(heal)
				synctest.Wait()
				if got := findings(n); got != "" {
					t.Errorf("after it has healed: %q", got)
				}
			})
		})
	}
}

// A pod whose link cannot be made again keeps no other pod's link from being mended.
func TestHangingRepairKeepsNoOtherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		bad, good := owner("", "bad", "rule"), owner("", "good", "rule")
		take(t, n, bad)
		take(t, n, good)
		heal := make(chan struct{})
		n.world.before = hanging(heal, "acquire", bad.ID) // whatever its context says
		n.world.set(func() { clear(n.world.things) })
		swept := make(chan error, 1)
		go func() {
			_, err := n.Sweep(t.Context())
			swept <- err
		}()
		synctest.Wait()
		if !n.world.has(good.Holds[0]) {
			t.Error("the other owner's rule is not there")
		}
		if err := <-swept; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sweep: %v", err)
		}
		close(heal)
		synctest.Wait()
	})
}

// A plugin that got no answer cuts a pod off by itself. It may do so after a repair has
// looked for the pod's deletion, and before the repair takes the link again.
func TestRepairThatMeetsADeletionCutsOffAgain(t *testing.T) {
	going := false
	n := newNodeOf(t, nil, func(o *engine.Options) { o.Going = func(hold.ID) (bool, error) { return going, nil } })
	o := owner("", "a", "wire")
	take(t, n, o)
	n.world.set(func() { clear(n.world.things); clear(n.world.users) })
	n.world.before = on("acquire", func(context.Context, hold.Hold) error { going = true; return nil })
	must(t, n.Repair(t.Context(), o.ID))
	if n.world.has(o.Holds[0]) || !n.world.cut["wire "+string(o.ID)] {
		t.Error("what was cut off is connected again")
	}
}

// For a moment, nobody can tell whether a pod's deletion waits: before or after a repair has taken
// the pod's link again. The repair leaves nothing that the next one cannot mend. If a deletion
// waits after all, the pod stays off.
func TestRepairThatCannotTellIsMended(t *testing.T) {
	unread := errors.New("too many open files")
	for _, fails := range []int{1, 2} { // the first look is before the wire is taken, the second one after
		for _, waits := range []bool{false, true} {
			looks, connected := 0, false
			n := bareNode(t)
			n.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
				ks[1].Sever = func(context.Context, []hold.Hold) error { connected = false; return nil }
				return l, ks
			}, func(o *engine.Options) {
				o.Going = func(hold.ID) (bool, error) {
					switch looks++; {
					case looks < fails:
						return false, nil
					case looks == fails:
						return false, unread
					}
					return waits, nil
				}
			})
			o := owner("", "a", "wire")
			take(t, n, o)
			n.world.set(func() { clear(n.world.things); clear(n.world.users) })
			n.world.before = on("acquire", func(context.Context, hold.Hold) error { connected = true; return nil })
			if err := n.Repair(t.Context(), o.ID); !errors.Is(err, unread) {
				t.Errorf("look %d fails: Repair: %v", fails, err)
			}
			if connected || n.world.cut["wire "+string(o.ID)] {
				t.Errorf("look %d fails: it is connected: %v, or cut off for good", fails, connected)
			}
			n.world.set(func() { clear(n.world.things); clear(n.world.users) }) // Verify says ErrGone of a severed hold, too
			must(t, n.Repair(t.Context(), o.ID))
			if connected == waits {
				t.Errorf("look %d fails: a deletion waits: %v; it is connected: %v", fails, waits, connected)
			}
			n.stop()
		}
	}
}

// An agent that is told to stop does so, also while a kind hangs that does not heed its
// context.
func TestCloseWaitsForNobodyForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := bareNode(t)
		n.start(nil)
		o := owner("", "a", "rule")
		take(t, n, o)
		heal := make(chan struct{})
		n.world.before = hanging(heal, "release")
		must(t, n.Release(t.Context(), []hold.ID{o.ID}))
		synctest.Wait()
		begun := time.Now() // of the bubble's clock
		n.stop()
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("it took %v to close", took)
		}
		close(heal)
		synctest.Wait()
		n.world.before = func(context.Context, string, hold.Hold) error { return nil }
		n.start(nil)
		defer n.stop()
		must(t, n.Restore(t.Context()))
		must(t, n.Wait(t.Context(), o.ID))
		wantResidue(t, n, empty)
	})
}

// If a kind does not answer, Repair, which is for callers that are about to rely on the
// owner, does not say that all is there. RepairSoon, which is for callers that hear of
// changes, asks that kind no more for a while.
func TestRepairBelievesNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heal := make(chan struct{})
		n := newNodeOf(t, func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			ks[1].Verify = func(_ context.Context, look *hold.Look, hs []hold.Hold) []error {
				<-heal // whatever its context says
				return make([]error, len(hs))
			}
			return l, ks
		})
		o := owner("", "a", "wire", "rule")
		take(t, n, o)
		for try := range 2 { // the first finds out that the kind hesitates
			if err := n.Repair(t.Context(), o.ID); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("try %d: Repair says %v of a wire that nobody has seen", try, err)
			}
		}
		n.world.set(func() { delete(n.world.things, "rule "+string(o.ID)) })
		begun := time.Now() // of the bubble's clock
		if err := n.RepairSoon(t.Context(), o.ID); err != nil || time.Since(begun) > 0 || !n.world.has(o.Holds[1]) {
			t.Errorf("RepairSoon: %v, after %v; the rule is there: %t", err, time.Since(begun), n.world.has(o.Holds[1]))
		}
		close(heal)
		synctest.Wait()
	})
}

// A Take that hangs and does not heed its context keeps its own owner from departing. It
// keeps no sweep from ending: neither the one that begins the departure, nor later ones.
func TestSweepWaitsForNoHangingTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		heal := make(chan struct{})
		n.world.before = hanging(heal, "acquire") // whatever its context says
		o := owner("", "a", "wire")
		taken := make(chan error, 1)
		go func() { taken <- n.Take(t.Context(), o) }()
		synctest.Wait()
		if _, err := n.Promise(t.Context(), []hold.ID{o.ID}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			begun := time.Now() // of the bubble's clock
			if _, err := n.Sweep(t.Context()); err == nil || time.Since(begun) > 30*time.Second {
				t.Errorf("Sweep: %v, after %v", err, time.Since(begun))
			}
		}
		close(heal)
		if err := <-taken; !errors.Is(err, engine.ErrOvertaken) {
			t.Errorf("Take: %v", err)
		}
		must(t, n.Wait(t.Context(), o.ID))
		wantResidue(t, n, empty)
	})
}
