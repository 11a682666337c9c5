package engine_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// do takes one step, and tries the step again as often as it fails. do reports whether the step is
// done: the step is not done if the engine has died.
func (r *modelRun) do(s step) bool {
	ctx := r.t.Context()
	switch s.verb {
	case taking:
		return r.doTake(ctx, s)
	case claim:
		return r.doClaim(ctx, s)
	case releasing:
		return r.doRelease(ctx, r.leave(s.name))
	case race:
		return r.doRace(ctx, s, nil)
	case orphan:
		return r.doRace(ctx, s, r.leave(s.needs[0]))
	case undo:
		return r.doUndo(ctx, s.name)
	case sweep:
		r.doSweep(ctx)
	case repair:
		if err := r.Repair(ctx, r.stands(s.name).ID); err != nil && r.plan.Surfaced() == "" {
			r.t.Errorf("repair of %s: %v", s.name, err)
		}
	case change:
		return r.doChange(ctx, s)
	case expire:
		r.expire(r.stands(s.name).Holds[s.at].Spec.(*thing))
	case grant:
		return r.doGrant(ctx, s)
	case pass:
		return r.doPass(ctx, s)
	case lose:
		r.lose(r.stands(s.name))
	case stray:
		id := hold.NewID()
		r.mu.Lock()
		r.strays[id] = true
		r.mu.Unlock()
		r.world.set(func() { r.world.things["rule "+string(id)] = id })
	}
	return true // if the engine has died in a sweep, no other sweep is needed
}

// incarnation makes an owner for a step.
func (r *modelRun) incarnation(s step, needs ...hold.ID) hold.Owner {
	o := owner("", s.name)
	o.Needs = needs
	o.Names = append(o.Names, hold.Name{Space: "port", Name: s.name})
	for i, k := range s.kinds {
		t := &thing{K: k, N: fmt.Sprintf("%s-%d", o.ID, i)}
		switch k {
		case "wire":
			t.Uses = fmt.Sprintf("%s-%d", s.name, i)
		case "lease":
			t.Offers = fmt.Sprintf("%s-%d", s.name, i)
			if name := r.anothers(); name != "" && rand.IntN(8) == 0 {
				t.Offers, t.Twice = name, true
			}
		}
		o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: t})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure[s.name] = append(r.unsure[s.name], o.ID)
	o.Ordered = s.tag%2 == 0
	if s.joins {
		o.Joined = s.tag
	}
	r.needs[o.ID], r.ordered[o.ID], r.joined[o.ID] = needs, o.Ordered, o.Joined
	for _, id := range needs {
		r.needers[id] = append(r.needers[id], o.ID)
	}
	r.leaves[o.ID] = span{start: r.now()} // the engine releases it if Take fails
	if hasBlock(o) {
		r.loosen(o.ID)
	}
	return o
}

func (r *modelRun) doTake(ctx context.Context, s step) bool {
	for try := 0; ; try++ {
		if r.adopt(ctx, s.name) {
			return true
		}
		if !r.doRelease(ctx, r.leave(s.name)) { // what earlier tries have left
			return false
		}
		var needs []hold.ID
		for _, name := range s.needs {
			needs = append(needs, r.stands(name).ID)
		}
		o := r.incarnation(s, needs...)
		err := r.Take(ctx, o)
		if err == nil && len(twice(o)) > 0 {
			r.wantOwn(o)
			continue // the loop releases o: the next owner needs a name of its own
		}
		if err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.standing[s.name] = o
			r.unsure[s.name] = nil
			return true
		}
		var taken *ledger.NameTakenError
		var refused *engine.RefusedError
		rec, _ := r.ledger.Owner(o.ID)
		if !errors.As(err, &refused) {
			r.mu.Lock()
			r.untaken[o.ID] = true
			r.mu.Unlock()
		}
		switch {
		case r.dead():
			return false
		case rec.ID != "" && rec.Wanted() && !errors.As(err, &refused) && !strings.Contains(err.Error(), "undoing"):
			r.t.Errorf("taking %s: %v; and it is still wanted", s.name, err)
		case errors.As(err, &taken) && try > 1000:
			has, _ := r.ledger.Owner(taken.Owner)
			r.t.Errorf("taking %s: %v, for ever; that is %+v; owed %v", s.name, err, has, r.Owed(""))
			return true
		case errors.As(err, &taken) && slices.Contains(twice(o), taken.Name):
			r.count(&r.doubled)
		case errors.As(err, &taken):
			r.await(ctx, taken.Owner)
		case r.plan.Surfaced() == "":
			r.t.Errorf("taking %s: %v", s.name, err)
			return true
		}
		r.heal(try)
	}
}

// adopt makes an incarnation the name's owner that an earlier life of the engine was taking
// and that this life has restored. It does so now and then, as a runtime may.
func (r *modelRun) adopt(ctx context.Context, name string) bool {
	left := r.leave(name)
	if len(left) == 0 || left[0][0] < 'p' {
		return false
	}
	id := left[len(left)-1]
	o, ok := r.ledger.Owner(id)
	if !ok || !o.Wanted() || r.Repair(ctx, id) != nil { // Repair refuses a doomed owner, for example
		return false
	}
	if now, ok := r.ledger.Owner(id); !ok || !now.Wanted() { // the owner was doomed, until its release was promised just now
		return false
	}
	if len(twice(o)) > 0 { // the other owner of the name has gone, and o must have the name now
		r.wantOwn(o)
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing[name] = o
	r.unsure[name] = slices.DeleteFunc(r.unsure[name], func(u hold.ID) bool { return u == id })
	return true
}

// doClaim takes a name that an owner has, or an address that an owner has or has had. Take
// must refuse that.
func (r *modelRun) doClaim(ctx context.Context, s step) bool {
	var taken *ledger.NameTakenError
	has := r.stands(s.name).ID
	o := owner("", s.name, "wire")
	if s.address != "" {
		o.Names, o.Holds[0].Spec.(*thing).Uses = []hold.Name{address(s.address)}, ""
	}
	err := r.Take(ctx, o)
	if s.name == "" && err != nil {
		return true // the address rests, or is about to
	}
	if err == nil || errors.As(err, &taken) && taken.Owner != has {
		r.t.Errorf("taking %s, which %s has: %v", s.name, has, err)
	}
	return true
}

// doRelease releases owners until Release returns nil.
func (r *modelRun) doRelease(ctx context.Context, ids []hold.ID) bool {
	for try := 0; len(ids) > 0; try++ {
		err := r.Release(ctx, ids)
		if err == nil {
			r.promise(ids)
			return true
		}
		if r.dead() {
			return false
		}
		if r.plan.Surfaced() == "" {
			r.t.Errorf("releasing %v: %v", ids, err)
		}
		r.heal(try)
	}
	return true
}

func address(name string) hold.Name { return hold.Name{Space: "address", Name: name} }

// doGrant gives an owner an address, in a commit of its own.
func (r *modelRun) doGrant(ctx context.Context, s step) bool {
	id, name := r.stands(s.name).ID, address(s.address)
	return r.until(s, func() bool { return r.holder(name) == id }, func() error {
		return r.Ledger.Commit(ctx, ledger.Update(id, func(o *hold.Owner) error {
			o.Names = append(o.Names, name)
			return nil
		}))
	})
}

// doPass passes an address from one owner to another, in a commit of its own, or in the commit
// of a change that changes nothing else. From then on the other owner has the address. The address
// is never free in between, or it would rest.
func (r *modelRun) doPass(ctx context.Context, s step) bool {
	from, to, name := r.stands(s.from).ID, r.stands(s.name).ID, address(s.address)
	return r.until(s, func() bool { return r.holder(name) == to }, func() error {
		op := ledger.Pass(from, to, name)
		if s.tag%2 == 0 {
			return r.Ledger.Commit(ctx, op)
		}
		_, err := r.Change(ctx, from, func(*hold.Owner) error { return nil }, op)
		return err
	})
}

// until tries something until so returns true: a try may succeed and its answer be lost.
func (r *modelRun) until(s step, so func() bool, try func() error) bool {
	for n := 0; !so(); n++ {
		switch err := try(); {
		case r.dead():
			return false
		case err != nil && r.plan.Surfaced() == "", err == nil && !so():
			r.t.Errorf("step %+v: %v", s, err)
			return true
		}
		r.heal(n)
	}
	return true
}

func (r *modelRun) holder(name hold.Name) hold.ID {
	id, _ := r.ledger.Holder(name)
	return id
}

// doChange takes a thing from an owner, and now and then a need and an address. It gives the
// owner another thing, which may discover the name of the lost one, and now and then another
// owner's address.
func (r *modelRun) doChange(ctx context.Context, s step) bool {
	o := r.stands(s.name)
	fresh := &thing{K: s.kinds[0], N: fmt.Sprintf("%s-c%d", o.ID, s.tag)}
	gained := hold.Hold{Owner: o.ID, Spec: fresh}
	var lost hold.Hold
	r.mu.Lock()
	r.passed[fresh.String()] = true // because a rollback may take it back
	if o.Holds = slices.Clone(o.Holds); r.changing[s.tag].Spec == nil {
		lost = o.Holds[s.at]
		r.changing[s.tag] = lost
		r.passed[lost.Spec.String()] = true
		o.Holds = slices.Delete(o.Holds, s.at, s.at+1)
		r.standing[s.name] = o
	} else { // an earlier life has begun the change
		lost = r.changing[s.tag]
	}
	if fresh.K == "lease" {
		fresh.Offers = cmp.Or(lost.Spec.(*thing).Offers, fresh.N)
	}
	var unneeded []hold.ID
	if len(s.needs) > 0 {
		unneeded = o.Needs[:1]
		r.needs[o.ID] = o.Needs[1:] // the owner that it no longer needs may go before Change answers
	}
	from := r.standing[s.from].ID
	if s.address != "" && s.from == "" {
		r.parted[lost.Spec.String()] = address(s.address)
	}
	r.mu.Unlock()
	for try := 0; ; try++ {
		var ops []ledger.Op
		if from != "" && r.holder(address(s.address)) == from {
			if rec, _ := r.ledger.Owner(o.ID); rec.Before == nil && rec.ID != "" && slices.ContainsFunc(rec.Holds, func(h hold.Hold) bool { return h.Spec.String() == fresh.String() }) {
				r.t.Errorf("%s has changed, and %s did not pass in the same commit", s.name, s.address)
			}
			ops = append(ops, ledger.Pass(from, o.ID, address(s.address)))
		}
		ctx, cancel := context.WithTimeout(ctx, r.brief()) // Change may wait for a release that fails until the fault is healed
		gone, err := r.Change(ctx, o.ID, func(now *hold.Owner) error {
			if s.from == "" {
				now.Names = slices.DeleteFunc(now.Names, func(n hold.Name) bool { return n == address(s.address) })
			}
			now.Holds = slices.DeleteFunc(now.Holds, func(h hold.Hold) bool { return h.Spec.String() == lost.Spec.String() })
			now.Needs = slices.DeleteFunc(now.Needs, func(id hold.ID) bool { return slices.Contains(unneeded, id) })
			if !slices.ContainsFunc(now.Holds, func(h hold.Hold) bool { return h.Spec.String() == fresh.String() }) {
				now.Holds = append(now.Holds, gained)
			}
			return nil
		}, ops...)
		cancel()
		if err == nil || gone != "" {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.passed, fresh.String())
			o.Holds, o.Needs = append(o.Holds, gained), o.Needs[len(unneeded):]
			r.standing[s.name], r.needs[o.ID] = o, o.Needs
			return true
		}
		if r.dead() {
			return false
		}
		if r.plan.Surfaced() == "" {
			r.t.Errorf("changing %s: %v", s.name, err)
			return true
		}
		r.heal(try)
	}
}

// brief is how long a change may take before it is tried again.
func (r *modelRun) brief() time.Duration {
	if r.shape.bubble {
		return 100 * time.Millisecond
	}
	return 2 * time.Second
}

// doRace releases an owner while it is being taken. If needed is not empty, doRace releases needed
// instead: another owner that the first one needs, with the owners that go with it.
func (r *modelRun) doRace(ctx context.Context, s step, needed []hold.ID) bool {
	var needs []hold.ID
	if n := len(needed); n > 0 {
		needs = needed[n-1:]
	}
	o := r.incarnation(s, needs...)
	ids := append(needed, r.leave(s.name)...)
	var errTake, errRelease error
	var both sync.WaitGroup
	both.Go(func() { errTake = r.Take(ctx, o) })
	both.Go(func() { errRelease = r.Release(ctx, ids) })
	both.Wait()
	if rec, ok := r.ledger.Owner(o.ID); ok && rec.Wanted() && errRelease == nil && needs != nil && !r.isLoose(needs[0]) {
		r.t.Errorf("%s was taken (%v) and needs %s, which is released", s.name, errTake, needs)
	}
	return r.doRelease(ctx, ids)
}

// doUndo releases an owner while a sweep takes again what the owner lacks.
func (r *modelRun) doUndo(ctx context.Context, name string) bool {
	if o := r.stands(name); o.ID != "" {
		r.lose(o)
	}
	ids := r.leave(name)
	var both sync.WaitGroup
	both.Go(func() { r.doSweep(ctx) })
	done := r.doRelease(ctx, ids)
	both.Wait()
	return done
}

// doSweep sweeps, in the middle of everything. Things of owners that are being taken or
// released must not count as left over.
func (r *modelRun) doSweep(ctx context.Context) {
	rep, err := r.Sweep(ctx)
	if err != nil && r.plan.Surfaced() == "" && !r.isTwice(err) && !r.isLate(err) {
		r.t.Errorf("sweep: %v; %v", err, rep)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range rep.Findings {
		if f.Type == "left-over" && !r.strays[f.Hold.Owner] {
			r.t.Errorf("the sweep takes %s for left over", f.Hold.Spec)
		}
	}
}

// isLate reports whether an error may say no more than that the machine is slow: outside a bubble, a call can reach its limit although
// nothing hangs.
func (r *modelRun) isLate(err error) bool {
	return !r.shape.bubble && strings.Contains(err.Error(), "the release has not ended within")
}

// expire lets a process come to its end.
func (r *modelRun) expire(t *thing) {
	r.world.set(func() {
		r.world.ended[t.String()] = true
		delete(r.world.things, t.String())
	})
}

// lose removes one of an owner's things behind the engine's back. It leaves processes alone,
// which the engine would take for ended.
func (r *modelRun) lose(o hold.Owner) {
	t := o.Holds[int(o.ID[0])%len(o.Holds)].Spec.(*thing)
	if t.K == "proc" {
		return
	}
	r.world.set(func() {
		delete(r.world.things, t.String())
		delete(r.world.cut, t.String()) // the release of an owner that this one needs may have cut it off before
		delete(r.world.users, t.Uses)
		r.world.moved[t.String()]++
	})
}

// stands returns the owner that has a name.
func (r *modelRun) stands(name string) hold.Owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.standing[name]
}

// leave returns the owners that have to be released until a name is free: its owner and all
// that go with it, which no step may rely on from now on, and what earlier tries have left.
// An owner comes after the owners that need it.
func (r *modelRun) leave(name string) []hold.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.standing[name]
	if !ok {
		return slices.Clone(r.unsure[name])
	}
	var visit func(string, hold.ID)
	visit = func(n string, id hold.ID) {
		gone := r.standing[n]
		delete(r.standing, n)
		if !hasBlock(gone) {
			for needer, of := range r.standing {
				if slices.Contains(of.Needs, id) {
					visit(needer, of.ID)
				}
			}
		}
		r.unsure[name] = append(r.unsure[name], id)
		r.with[id] = o.ID
		r.leaves[id] = span{start: r.now()}
	}
	visit(name, o.ID)
	return slices.Clone(r.unsure[name])
}

// promise checks what a Release that returned nil has promised: its owners are cut off.
func (r *modelRun) promise(ids []hold.ID) {
	r.mu.Lock()
	for _, id := range ids {
		r.promised[id] = true
		r.leaves[id] = span{r.leaves[id].start, cmp.Or(r.leaves[id].end, r.now())}
	}
	for name, left := range r.unsure {
		r.unsure[name] = slices.DeleteFunc(left, func(id hold.ID) bool { return r.promised[id] })
	}
	loose := maps.Clone(r.loose)
	r.mu.Unlock()
	r.world.set(func() {
		for t, id := range r.world.things {
			if slices.Contains(ids, id) && strings.HasPrefix(t, "wire ") && !r.world.cut[t] && !loose[id] {
				r.t.Errorf("%s is released, and its %s is not cut off", id, t)
			}
		}
	})
}

func (r *modelRun) isLoose(id hold.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loose[id]
}

// await waits a while for an owner to be gone.
func (r *modelRun) await(ctx context.Context, id hold.ID) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_ = r.Wait(ctx, id)
}

// heal ends the faults once something has been tried too often.
func (r *modelRun) heal(try int) {
	if try >= 3 {
		r.plan.Heal()
	}
}
