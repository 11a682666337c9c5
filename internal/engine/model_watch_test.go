package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
)

// limit is how long one call of a kind may take.
type limit struct{ try, look time.Duration }

// usual has the limits of the engine's options in the model. limits has the limits of the kinds
// that have limits of their own: one kind has a shorter try and a longer look than usual, the other
// kind has a longer try and a shorter look.
var (
	usual  = limit{5 * time.Millisecond, 2 * time.Second}
	limits = map[string]limit{
		"wire":  {2 * time.Millisecond, 6 * time.Second},
		"lease": {3 * time.Second, time.Second},
	}
)

// calls are the calls of kinds in one life of an engine, as the engine makes them.
type calls struct {
	mu    sync.Mutex
	under map[string]int   // by kind: releases under way
	later map[string]pause // by kind: the last pause that the engine has heard of
}

// pause is a time in which nothing of a kind is to be tried.
type pause struct{ from, until time.Time }

func newCalls() *calls { return &calls{under: map[string]int{}, later: map[string]pause{}} }

// watch checks the calls of a kind. No more releases than its Flight are under way at once;
// releases of things without an owner do not count. Each call has the limit of the kind, or else
// the limit of the options. No call begins while the kind pauses.
func (c *calls) watch(r *modelRun, k hold.Kind) hold.Kind {
	name, lim := k.Name(), usual
	if own, ok := limits[k.Name()]; ok {
		lim = own
	}
	acquire, verify, find, release := k.Acquire, k.Verify, k.Find, k.Release
	k.Acquire = func(ctx context.Context, h hold.Hold) error {
		c.begins(r, name, "acquire")
		err := acquire(ctx, h)
		c.answers(name, err)
		return err
	}
	k.Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
		r.watchLimit(ctx, "verify "+name, lim.look, usual.look)
		if rand.IntN(4) == 0 { // the world changes after the engine has read the ledger
			time.Sleep(100 * time.Microsecond)
		}
		return verify(ctx, look, hs)
	}
	k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
		r.watchLimit(ctx, "find "+name, lim.look, usual.look)
		return find(ctx, look)
	}
	k.Release = func(ctx context.Context, hs []hold.Hold) []error {
		r.watchLimit(ctx, "release "+name, lim.try, usual.try)
		c.begins(r, name, "release")
		r.mu.Lock()
		stray := r.strays[hs[0].Owner]
		r.mu.Unlock()
		if !stray {
			c.count(r, name, 1)
			defer c.count(r, name, -1)
		}
		r.mu.Lock()
		for _, h := range hs {
			r.tried[h.Spec.String()] = true
		}
		r.mu.Unlock()
		errs := release(ctx, hs)
		c.answers(name, errs...)
		return errs
	}
	return k
}

func (c *calls) count(r *modelRun, name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under[name] += n; c.under[name] > r.shape.flight {
		r.t.Errorf("%d releases at once of %s, of which the Flight is %d", c.under[name], name, r.shape.flight)
	}
}

// begins checks that a call does not begin in a pause. Outside a bubble time passes
// between what the engine sees and what it does.
func (c *calls) begins(r *modelRun, name, op string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, now := c.later[name], time.Now(); r.shape.bubble && p.from.Before(now) && now.Before(p.until) {
		r.t.Errorf("%s %s begins %s before the kind may be asked again", op, name, p.until.Sub(now))
	}
}

// answers notes the pauses that a kind's answers ask the engine for.
func (c *calls) answers(name string, errs ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range errs {
		var later *hold.LaterError
		if errors.As(err, &later) && later.At.After(c.later[name].until) {
			c.later[name] = pause{time.Now(), later.At}
		}
	}
}

// api is what all kinds ask in one life. Now and then it begins a pause of one kind: until
// the pause ends, it answers all calls of the kind that it was asked too often. Often another
// pause begins with the first call after the end.
type api struct {
	quiet bool                 // the API begins no pause
	later map[string]time.Time // by kind: the end of the last pause
	asked map[string]int       // by kind: how often it was asked in the last pause
	again map[string]bool      // by kind: the next call may begin a second pause
}

// askedInAPause is how many calls may come in a pause, because they were on their way when it
// began: the releases that a kind's Flight allows, and one Take or repair for each name. Outside
// a bubble time passes before the engine hears an answer. If the answer's time has passed by then, the
// engine asks again, at most three times, although the pause goes on.
func (r *modelRun) askedInAPause() int {
	calls := r.shape.flight + len(r.script.names)
	if !r.shape.bubble {
		calls *= 1 + 3
	}
	return calls
}

// ask is called with modelRun.mu held.
func (a *api) ask(r *modelRun, kind string) error {
	now := time.Now()
	switch until := a.later[kind]; {
	case now.Before(until):
		if a.asked[kind]++; a.asked[kind] > r.askedInAPause() {
			r.t.Errorf("in a pause %s was asked %d times", kind, a.asked[kind])
			return nil // or the calls would go on for ever
		}
		// One answer names an earlier time than the pause's end. The engine must not forget the end
		// for that time. If each answer named an earlier time, an engine that has not heard of the
		// end would ask many times.
		if a.asked[kind] == 1 {
			until = now.Add(until.Sub(now) / 2)
		}
		return &hold.LaterError{At: until, Err: errThrottled}
	case a.quiet, !a.again[kind] && rand.IntN(200) > 0, a.again[kind] && rand.IntN(3) > 0:
		a.again[kind] = false
		return nil
	}
	a.again[kind] = !a.again[kind]
	a.later[kind], a.asked[kind] = now.Add(r.pause()), 0
	return &hold.LaterError{At: a.later[kind], Err: errThrottled}
}

// pause is how long a kind's pause lasts.
func (r *modelRun) pause() time.Duration {
	if r.shape.bubble {
		return 20 * time.Millisecond
	}
	return 200 * time.Microsecond
}

// wantTried checks that all Use holds of an ordered owner, and of an owner that others join, are tried although
// some releases fail and nothing heals them. Only in a bubble the test knows when all tries are over.
func (r *modelRun) wantTried() {
	if !r.shape.bubble || !r.plan.lasts("release ") {
		return
	}
	time.Sleep(2*r.pause() + 10*time.Millisecond)
	if !r.plan.lasts("release ") { // another fault has surfaced meanwhile, and the engine may be dead
		return
	}
	for _, o := range r.ledger.Owners() {
		if o.Wanted() || r.stays(o.ID) || r.isStoodOn(o.ID) || !o.Ordered && len(r.ledger.Needers(o.ID)) == 0 {
			continue
		}
		for _, h := range o.Holds {
			r.mu.Lock()
			tried := r.tried[h.Spec.String()]
			r.mu.Unlock()
			if h.Spec.(*thing).isUse() && r.world.has(h) && !tried {
				r.t.Errorf("%s of %s is not tried, since another is owed: %v; %s", h.Spec, o, r.Owed(o.ID), r.plan.Surfaced())
			}
		}
	}
}

// isStoodOn reports whether an owner has to wait for an owner that needs it: one that does not join it, or that has to wait
// itself.
func (r *modelRun) isStoodOn(id hold.ID) bool {
	return slices.ContainsFunc(r.ledger.Needers(id), func(needer hold.ID) bool {
		o, ok := r.ledger.Owner(needer)
		return ok && (o.Lead() != id || r.isStoodOn(needer))
	})
}

// watchLimit checks the deadline of a call: it is within the kind's own limit, and beyond the
// usual limit if the kind's is longer.
func (r *modelRun) watchLimit(ctx context.Context, what string, own, usual time.Duration) {
	end, ok := ctx.Deadline()
	if left := time.Until(end); !ok || left > own || own > usual && left <= usual {
		r.t.Errorf("%s has %s, ends at all: %t; want up to %s", what, left, ok, own)
	}
}

// hear checks that the engine sends Ended events only of processes that have ended, and
// counts them.
func (r *modelRun) hear(o *engine.Options) {
	tell := o.Event
	o.Event = func(e engine.Event) {
		tell(e)
		if e.Type != engine.Ended {
			return
		}
		t, _, _ := strings.Cut(e.Err.Error(), ":")
		if !errors.Is(e.Err, hold.ErrGone) {
			r.t.Errorf("it is told that something of %s has ended, which could not be seen: %v", e.Owner.ID, e.Err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told[t]++
		r.world.set(func() {
			if !r.world.ended[t] {
				r.t.Errorf("it is told that %s of %s has ended, which was released, is there or never was", t, e.Owner.ID)
			}
		})
	}
}

// toldOf returns how many events in this life said that a process has ended.
func (r *modelRun) toldOf(t *thing) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told[t.String()]
}

// plans are the faults of one life: one, or two of which the second does not end the life.
type plans []plan

type plan struct {
	*fault.Plan
	releases bool // the fault hits only releases
}

func newPlans(random *rand.Rand) plans {
	all := append(fault.Modes(), fault.Hangs()...)
	ps := plans{newPlan(random, all)}
	switch random.IntN(4) {
	case 0, 1:
		lives := slices.DeleteFunc(all, fault.Mode.Kill)
		ps = append(ps, newPlan(random, lives))
	case 2:
		plan := plan{fault.New(1+random.IntN(20), fault.FailForever), true}
		plan.Narrow = random.IntN(2) == 0
		ps = append(ps, plan)
	}
	return ps
}

func newPlan(random *rand.Rand, modes []fault.Mode) plan {
	p := fault.New(1+random.IntN(120), modes[random.IntN(len(modes))])
	hangs := time.Duration(random.IntN(10)) * time.Millisecond
	p.Narrow, p.Looks = random.IntN(2) == 0, random.IntN(2) == 0
	p.Beside = func(string) {
		if p.Mode.Hangs() { // now and then for longer than a try may take
			time.AfterFunc(hangs, p.Heal)
		}
	}
	return plan{Plan: p}
}

// Decorate puts the first plan around the others, because it may end the life.
func (ps plans) Decorate(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
	for _, p := range slices.Backward(ps) {
		to, kinds := p.Decorate(l, ks)
		if p.releases {
			for i := range ks {
				ks[i].Release = kinds[i].Release
			}
			continue
		}
		l, ks = to, kinds
	}
	return l, ks
}

func (ps plans) Heal() {
	for _, p := range ps {
		p.Heal()
	}
}

// lasts reports whether faults have surfaced, and all of them go on at operations of one sort.
func (ps plans) lasts(sort string) bool {
	lasts := false
	for _, p := range ps {
		if at := p.Surfaced(); at != "" && (p.Mode != fault.FailForever || !strings.HasPrefix(at, sort)) {
			return false
		} else if at != "" {
			lasts = true
		}
	}
	return lasts
}

// IsDead reports whether the life has ended.
func (ps plans) IsDead() bool { return ps[0].IsDead() }

// Surfaced returns the operations at which faults have surfaced, or "".
func (ps plans) Surfaced() string {
	var at []string
	for _, p := range ps {
		if s := p.Surfaced(); s != "" {
			at = append(at, s)
		}
	}
	return strings.Join(at, ", ")
}
