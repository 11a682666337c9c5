package engine_test

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// besides are the things that may happen beside a fault. victim is the owner that the faulty
// operation is about, or the parent if the operation is about no owner.
var besides = []struct {
	name string
	do   func(r *pairRun, ctx context.Context, victim hold.ID)
}{
	{"nothing else", func(*pairRun, context.Context, hold.ID) {}},
	{"the same release, twice", (*pairRun).releaseAgain},
	{"releases that have no patience", (*pairRun).releaseImpatiently},
	{"the release of all", (*pairRun).releaseAll},
	{"two sweeps", (*pairRun).sweepTwice},
	{"a repair", func(r *pairRun, ctx context.Context, victim hold.ID) { _ = r.Repair(ctx, victim) }},
	{"another try", (*pairRun).tryAgain},
	{"a claim of its name", (*pairRun).claim},
	{"a full disk, and a sweep", (*pairRun).fillDisk},
	{"the end of the program", func(r *pairRun, _ context.Context, _ hold.ID) { r.plan.Kill() }},
}

const besideFull = 8

// happen does what the pair has beside its fault. It begins before the faulty operation goes
// on, or a moment later.
func (r *pairRun) happen(what string) {
	victim := cmp.Or(r.plan.Victim(), r.parent.ID)
	done := make(chan struct{})
	r.steps.Go(func() {
		defer close(done)
		if r.late {
			time.Sleep(moment)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		besides[r.beside].do(r, ctx, victim)
	})
	if r.late {
		return
	}
	select {
	case <-done:
	case <-time.After(moment):
	}
}

func (r *pairRun) releaseAgain(ctx context.Context, victim hold.ID) {
	for range 2 {
		r.steps.Go(func() { _ = r.watch.release(ctx, r.Engine, victim) })
	}
}

// releaseImpatiently releases as a runtime does that gives up and comes again. A caller that
// has given up must cost nothing.
func (r *pairRun) releaseImpatiently(ctx context.Context, victim hold.ID) {
	before := 0
	for i := range 40 {
		if i == 5 {
			before = runtime.NumGoroutine()
		}
		ctx, cancel := context.WithTimeout(ctx, 100*time.Microsecond)
		_ = r.watch.release(ctx, r.Engine, victim)
		cancel()
	}
	if grown := runtime.NumGoroutine() - before; grown > 12 {
		r.t.Errorf("35 releases of one owner have left %d goroutines", grown)
	}
}

func (r *pairRun) releaseAll(ctx context.Context, _ hold.ID) {
	_ = r.watch.release(ctx, r.Engine, r.parent.ID, r.pod.ID)
}

func (r *pairRun) sweepTwice(ctx context.Context, _ hold.ID) {
	for range 2 {
		_, _ = r.Sweep(ctx)
	}
}

// tryAgain asks for another try of all that is owed, and waits for the outcome.
func (r *pairRun) tryAgain(ctx context.Context, victim hold.ID) {
	for range 3 {
		tries := map[string]int{}
		for _, o := range r.Owed(victim) {
			tries[fmt.Sprint(o.Hold)] = o.Tries
		}
		r.Retry(victim)
		if r.Doomed(victim) || r.Tried(ctx, victim) != nil {
			return
		}
		for _, o := range r.Owed(victim) {
			if was, ok := tries[fmt.Sprint(o.Hold)]; ok && o.Tries <= was && !r.watch.dead() {
				r.t.Errorf("asked for another try of %v, and hears of the one before: %+v", o.Hold, o)
			}
		}
		time.Sleep(moment)
	}
}

// claim takes the victim's name for another owner, which may have the name if nobody has it.
func (r *pairRun) claim(ctx context.Context, victim hold.ID) {
	o, ok := r.ledger.Owner(victim)
	if !ok || len(o.Names) == 0 {
		return
	}
	for range 3 {
		_ = r.watch.take(ctx, r.Engine, owner("", o.Names[0].Name, "wire"))
		time.Sleep(moment)
	}
}

// fillDisk lets the ledger refuse everything for a while, and sweeps meanwhile.
func (r *pairRun) fillDisk(ctx context.Context, _ hold.ID) {
	disk := r.disk
	disk.Fill(1)
	time.Sleep(time.Second)
	_, _ = r.Sweep(ctx)
	time.Sleep(time.Second)
	disk.Clear()
}
