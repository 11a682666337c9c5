package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
)

// watch sees every call of a kind from the engine's side, also one that fails or hangs, and
// checks the rules that no fault and no interleaving may break. One rule is checked by the
// world instead: no name is in use twice.
type watch struct {
	t     testing.TB
	world *world
	plan  *fault.Plan

	mu      sync.Mutex
	owners  map[hold.ID]hold.Owner // all owners that Take was called with
	failed  map[hold.ID]error      // Take's errors in this life
	gone    map[hold.ID]bool       // Release has returned nil
	calls   map[string]int         // by kind: releases under way
	seen    map[string]string      // by lease that is there: what Acquire discovers of it
	finds   int
	cut     map[hold.Hold]bool // holds whose cut was tried in this life; true: it succeeded
	cutting int                // cuts under way
	most    int                // the most cuts that were under way at once
	restart bool               // an earlier life may have ended before it wrote down what it knew
}

func newWatch(t testing.TB, w *world, p *fault.Plan) *watch {
	return &watch{
		t: t, world: w, plan: p, owners: map[hold.ID]hold.Owner{}, failed: map[hold.ID]error{},
		gone: map[hold.ID]bool{}, calls: map[string]int{}, seen: map[string]string{}, cut: map[hold.Hold]bool{},
	}
}

// begin starts another life: the new life knows of the former life only what is in the ledger.
func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.failed)
	clear(w.calls)
	clear(w.cut)
	w.restart = true
}

func (w *watch) errorf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf(format, args...)
}

// take is Engine.Take, watched.
func (w *watch) take(ctx context.Context, e *engine.Engine, o hold.Owner) error {
	w.mu.Lock()
	w.owners[o.ID] = o
	w.mu.Unlock()
	err := e.Take(ctx, o)
	var refused *engine.RefusedError
	if err != nil && !errors.As(err, &refused) { // after a refusal only a fault of the ledger can have written the owner
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failed[o.ID] = err
	}
	return err
}

// release is Engine.Release, watched.
func (w *watch) release(ctx context.Context, e *engine.Engine, ids ...hold.ID) error {
	known := slices.DeleteFunc(slices.Clone(ids), func(id hold.ID) bool { _, ok := e.Ledger.Owner(id); return !ok })
	err := e.Release(ctx, ids)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range known {
			w.gone[id] = true
		}
	}
	return err
}

// kind puts the watch around a kind. Each call takes some of the bubble's time, so
// that something may happen beside it.
func (w *watch) kind(k hold.Kind) hold.Kind {
	name, flight := k.Name(), k.Flight
	acquire, release, cut := k.Acquire, k.Release, k.Cut
	k.Acquire = func(ctx context.Context, h hold.Hold) error {
		w.acquires(h)
		time.Sleep(time.Millisecond)
		err := acquire(ctx, h)
		w.discovers(h)
		return err
	}
	k.Release = func(ctx context.Context, hs []hold.Hold) []error {
		w.releases(name, flight, hs)
		time.Sleep(time.Millisecond)
		errs := release(ctx, hs)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls[name]--
		return errs
	}
	if cut != nil {
		k.Cut = func(ctx context.Context, h hold.Hold) error {
			w.mu.Lock()
			w.cutting++
			w.most = max(w.most, w.cutting)
			w.mu.Unlock()
			time.Sleep(time.Millisecond)
			err := cut(ctx, h)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.cutting--
			key := hold.Hold{Owner: h.Owner, Spec: w.own(h)}
			w.cut[key] = w.cut[key] || err == nil
			return err
		}
	}
	return k
}

// own returns the spec that Take was called with. The spec of a call may be the ledger's copy of
// that spec.
func (w *watch) own(h hold.Hold) hold.Spec {
	for _, own := range w.owners[h.Owner].Holds {
		if own.Spec.String() == h.Spec.String() {
			return own.Spec
		}
	}
	return h.Spec
}

// acquires: no hold of an owner is taken after its Take has failed or it was released.
func (w *watch) acquires(h hold.Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.failed[h.Owner]; err != nil {
		w.errorf("%s is taken, though Take has failed: %v", h.Spec, err)
	}
	if w.gone[h.Owner] {
		w.errorf("%s is taken again, though its owner was released", h.Spec)
	}
}

// discovers fills in what an Acquire discovers of a lease that is there, also if the Acquire
// fails. A lease that was made anew has something else to discover.
func (w *watch) discovers(h hold.Hold) {
	s := h.Spec.(*thing)
	if s.K != "lease" || !w.world.has(h) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[s.N] == "" {
		w.finds++
		w.seen[s.N] = fmt.Sprint("leased ", w.finds)
	}
	s.Seen = w.seen[s.N]
}

// lost notes that a thing has vanished behind the engine's back.
func (w *watch) lost(h hold.Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := h.Spec.(*thing); s.K == "lease" {
		delete(w.seen, s.N)
	}
}

// releases: a kind has no more calls at once than its Flight, and each hold of a call may go
// now.
func (w *watch) releases(kind string, flight int, hs []hold.Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls[kind]++; w.calls[kind] > max(flight, 1) && !w.dead() {
		w.errorf("%d releases at once of %s, of which the Flight is %d", w.calls[kind], kind, flight)
	}
	var things map[string]hold.ID
	w.world.set(func() { things = maps.Clone(w.world.things) })
	for _, h := range hs {
		w.goes(h, things)
	}
}

// goes: an owner's hold goes after all holds of the owners that need it, and after a try to
// cut the owner off. If the cut has failed, only holds go that have a cut. The release of a
// hold knows what was discovered of it.
func (w *watch) goes(h hold.Hold, things map[string]hold.ID) {
	s := h.Spec.(*thing)
	for _, name := range slices.Sorted(maps.Keys(things)) {
		if slices.Contains(w.owners[things[name]].Needs, h.Owner) && s.K != "note" {
			w.errorf("%s is released before %s of one who needs it", s, name)
		}
	}
	for _, other := range w.owners[h.Owner].Holds {
		if things[other.Spec.String()] != h.Owner || other.Spec.Kind() != "wire" {
			continue
		}
		if done, tried := w.cut[other]; !tried || !done && s.K != "wire" {
			w.errorf("%s is released, and %s of its owner is not cut off (tried: %t)", s, other.Spec, tried)
		}
	}
	if s.K == "lease" && s.Seen != w.seen[s.N] && things[s.String()] == h.Owner && !w.restart {
		w.errorf("%s is released as %q, and what was discovered of it is %q", s, s.Seen, w.seen[s.N])
	}
}

func (w *watch) dead() bool { return w.plan.IsDead() }
