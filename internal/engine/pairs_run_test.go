package engine_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
)

// How long things may take in a pair run, of the bubble's time.
const (
	patience = 50 * time.Second // of a step, whatever hangs: longer than any limit of the engine
	moment   = 5 * time.Millisecond
)

// pairRun is a small life with a pair in it: a family and a pod come and go, something is lost,
// and others come and go while the broken operation stays broken.
type pairRun struct {
	*node
	pair
	watch *watch
	plan  *fault.Plan
	disk  *fault.Disk

	parent, child, twin, pod hold.Owner
	steps                    sync.WaitGroup
}

func newPairRun(t *testing.T, p pair) *pairRun {
	r := &pairRun{
		node:   bareNode(t),
		pair:   p,
		plan:   fault.New(p.at, p.mode),
		parent: owner("", "parent", "lease", "wire", "rule", "note"),
		pod:    owner("", "pod", "lease", "wire", "port", "rule", "note"),
	}
	r.child = owner(r.parent.ID, "child", "rule", "wire", "lease")
	r.twin = owner(r.parent.ID, "twin", "wire", "rule")
	r.plan.Looks, r.plan.Narrow = true, p.narrow
	r.watch = newWatch(t, r.world, r.plan)
	r.plan.Beside = func(what string) { r.happen(what) }
	return r
}

// live starts an engine, with the plan's faults or without them.
func (r *pairRun) live() {
	r.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
		for i := range ks {
			ks[i].Flight = map[string]int{"lease": 2, "wire": 2, "rule": 2, "note": 1}[ks[i].Name()]
		}
		if !r.watch.restart {
			l, ks = r.plan.Decorate(l, ks)
		}
		for i := range ks {
			ks[i] = r.watch.kind(ks[i])
		}
		r.disk = &fault.Disk{Ledger: l}
		return r.disk, ks
	}, func(o *engine.Options) {
		o.Try, o.Backoff, o.MaxBackoff = time.Second, 20*time.Millisecond, 100*time.Millisecond
	})
}

func (r *pairRun) run() {
	r.live()
	r.script()
	if r.plan.Surfaced() != "" && !r.watch.dead() {
		r.others()
	}
	r.plan.Heal()
	r.steps.Wait()
	if r.watch.dead() {
		time.Sleep(time.Minute) // by then all that was under way has ended
		r.stop()
		r.watch.begin()
		r.live()
		if err := r.Restore(r.t.Context()); err != nil {
			r.t.Errorf("restoring: %v", err)
		}
	}
	r.end()
}

// step does something, and waits until it has ended, but no longer than patience: a step that hangs
// longer goes on beside the next steps.
func (r *pairRun) step(what string, f func(ctx context.Context) error) (err error, ended bool) {
	if r.watch.dead() {
		return fault.ErrKilled, false
	}
	done := make(chan error, 1)
	r.steps.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- f(ctx)
	})
	select {
	case err := <-done:
		return err, true
	case <-r.plan.Dead():
	case <-time.After(patience + time.Second):
		if r.bounded() {
			r.t.Errorf("%s has not ended after %v", what, patience)
		}
	}
	return context.DeadlineExceeded, false
}

// bounded reports whether a step has to end although something hangs. A step may hang only
// if the fault does not heed its context, and is not at a Verify, Find, Release or Cut.
func (r *pairRun) bounded() bool {
	at := r.plan.Surfaced()
	return r.mode != fault.HangDeaf || strings.HasPrefix(at, "verify") || strings.HasPrefix(at, "find") || strings.HasPrefix(at, "release") || strings.HasPrefix(at, "cut")
}

func (r *pairRun) script() {
	ctx := func(o hold.Owner) func(context.Context) error {
		return func(ctx context.Context) error { return r.watch.take(ctx, r.Engine, o) }
	}
	for _, o := range []hold.Owner{r.parent, r.child, r.twin, r.pod} {
		r.step("taking "+string(o.Names[0].Name), ctx(o))
	}
	r.lose()
	r.step("releasing the pod", func(ctx context.Context) error { return r.watch.release(ctx, r.Engine, r.pod.ID) })
	r.vacated()
	r.step("taking its heir", ctx(owner("", "pod", "wire")))
	r.family()
	r.step("waiting for the family", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return r.Wait(ctx, r.parent.ID)
	})
}

// lose removes things behind the engine's back. One sweep brings all of them back, except
// those that the fault hits.
func (r *pairRun) lose() {
	lost := []hold.Hold{r.child.Holds[0], r.twin.Holds[0], r.pod.Holds[2], r.pod.Holds[0], r.parent.Holds[3]}
	r.world.set(func() {
		for _, h := range lost {
			s := h.Spec.(*thing)
			delete(r.world.things, s.String())
			delete(r.world.cut, s.String())
			delete(r.world.users, s.Uses)
		}
	})
	for _, h := range lost {
		r.watch.lost(h)
	}
	_, ended := r.step("the sweep", func(ctx context.Context) error { _, err := r.Sweep(ctx); return err })
	at := r.plan.Surfaced()
	if !ended && r.beside == 0 && strings.HasPrefix(at, "acquire") && !r.watch.dead() {
		r.t.Errorf("the sweep waits for what does not answer: %s", at)
	}
	if !ended || r.beside != 0 || r.disk.IsFull() || strings.HasPrefix(at, "commit") {
		return
	}
	for _, h := range lost {
		o, ok := r.ledger.Owner(h.Owner)
		if ok && o.Wanted() && !r.Doomed(o.ID) && !r.Taking(o.ID) && h.Owner != r.plan.Victim() && !strings.HasSuffix(at, h.Spec.Kind()) && !r.world.has(h) {
			r.t.Errorf("%s of another owner and another kind is not mended beside %s", h.Spec, at)
		}
	}
}

// vacated: a caller that needs the place of the pod's wire does not wait for the pod's other
// owed holds.
func (r *pairRun) vacated() {
	err, ended := r.step("waiting for the pod's wire", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return r.WaitKind(ctx, "wire", r.pod.ID)
	})
	at := r.plan.Surfaced()
	if !strings.HasPrefix(at, "release") || strings.HasSuffix(at, "wire") || r.beside == besideFull {
		return
	}
	if err != nil && !r.watch.dead() {
		r.t.Errorf("the pod's wire is not vacated beside %s: %v, ended %t", at, err, ended)
	}
}

// family releases the parent. No cut waits for another one.
func (r *pairRun) family() {
	cuts := 0
	for _, o := range []hold.Owner{r.parent, r.child, r.twin} {
		if now, ok := r.ledger.Owner(o.ID); ok && now.Wanted() && !r.Taking(o.ID) {
			cuts++
		}
	}
	r.watch.mu.Lock()
	before := r.watch.cutting // the pod's cut, for as long as it hangs
	r.watch.most = before
	r.watch.mu.Unlock()
	err, _ := r.step("releasing the family", func(ctx context.Context) error { return r.watch.release(ctx, r.Engine, r.parent.ID) })
	r.watch.mu.Lock()
	defer r.watch.mu.Unlock()
	if hangs := r.mode.Hangs() && strings.HasPrefix(r.plan.Surfaced(), "cut"); (err == nil || hangs) && cuts == 3 && r.watch.most-before < cuts && r.beside == 0 {
		r.t.Errorf("%d cuts of a family of %d at once", r.watch.most-before, cuts)
	}
}

// others lets other owners come and go at once, while something is broken that these owners do not
// use.
func (r *pairRun) others() {
	at := r.plan.Surfaced()
	if strings.HasPrefix(at, "commit") || !r.narrow && r.mode >= fault.FailForever {
		return
	}
	deaf := r.mode == fault.HangDeaf && strings.HasSuffix(at, "note") // a kind with a single place
	time.Sleep(5 * time.Second)                                       // until what happens beside the fault is over
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			o := owner("", string(rune('a'+i)), "lease", "wire", "rule", "note")
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			err := r.watch.take(ctx, r.Engine, o)
			if err == nil {
				err = r.watch.release(ctx, r.Engine, o.ID)
			}
			if err == nil && deaf {
				err = r.WaitKind(ctx, "lease", o.ID)
			} else if err == nil {
				err = r.Wait(ctx, o.ID)
			}
			if err != nil && !r.watch.dead() {
				r.t.Errorf("another owner, beside %s: %v; owed %v", at, err, r.Owed(""))
			}
		})
	}
	all.Wait()
}

// end releases all owners, now that all has healed. Nothing may be left.
func (r *pairRun) end() {
	r.disk.Clear()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var ids []hold.ID
	for _, o := range r.ledger.Owners() {
		ids = append(ids, o.ID)
	}
	err := r.watch.release(ctx, r.Engine, ids...)
	if err == nil {
		err = r.Wait(ctx, ids...)
	}
	time.Sleep(time.Minute)
	left := r.ledger.Owners()
	if err != nil || len(left) > 0 || len(r.Owed("")) > 0 || r.world.residue() != empty || len(r.world.cut) > 0 {
		r.t.Errorf("in the end: %v; ledger %v, owed %v, world %s, cut %v", err, left, r.Owed(""), r.world.residue(), r.world.cut)
	}
	if rep := r.Audit(ctx); len(rep.Findings) > 0 {
		r.t.Errorf("audit: %v", rep.Findings)
	}
	r.watch.mu.Lock()
	for id := range r.watch.owners {
		if r.Doomed(id) {
			r.t.Errorf("%s is gone, and doomed", id)
		}
	}
	r.watch.mu.Unlock()
	synctest.Wait()
	if left := goroutines(); left != "" {
		r.t.Errorf("goroutines of the engine, which has nothing to do:\n%s", left)
	}
	r.stop()
}

// goroutines returns the stacks of the engine's goroutines.
func goroutines() string {
	all := make([]byte, 1<<18)
	traces := strings.Split(string(all[:runtime.Stack(all, true)]), "\n\n")
	return strings.Join(slices.DeleteFunc(traces, func(s string) bool { return !strings.Contains(s, "internal/engine.") }), "\n\n")
}
