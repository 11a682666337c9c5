package engine_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the model test; 0: a new one, which is printed")
	opsFlag  = flag.Int("ops", 20000, "steps of the model test, over all its batch sizes")
)

// shape is how many holds one Release takes, and how many Releases run at once. In a bubble
// time passes only while nobody has anything to do, so that the test sees exactly whether
// something happens too early.
type shape struct {
	batch, flight int
	bubble        bool
}

// TestModel lets an engine live through a long random script (model_script_test.go). Owners,
// some of which need others, come and go, at once and against each other. In each of the
// engine's lives one operation fails or is its last. Things vanish and appear behind its
// back. Whenever all has settled, the test compares ledger and world with the model. The
// same script has to give the same states with every shape.
func TestModel(t *testing.T) {
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	t.Logf("replay with -seed %d", seed)
	shapes := []shape{{1, 1, false}, {1, 32, true}, {2, 3, false}, {8, 2, true}, {32, 1, false}}
	if testing.Short() {
		*opsFlag = min(*opsFlag, 4000)
	}
	var first []string
	for i, sh := range shapes {
		var r *modelRun
		live := func(t *testing.T) {
			r = newModelRun(t, seed, sh)
			r.play(*opsFlag / len(shapes))
		}
		if sh.bubble {
			synctest.Test(t, live)
		} else {
			live(t)
		}
		t.Logf("batch %d, flight %d: %d steps, %d lives, %d killed, %d other faults, %d names given twice, %d states",
			sh.batch, sh.flight, r.steps, r.lives, r.killed, r.failed, r.doubled, len(r.states))
		if t.Failed() {
			t.FailNow()
		}
		if i == 0 {
			first = r.states
		}
		if !slices.Equal(first, r.states) {
			t.Errorf("batch %d, flight %d: other states than with %v", sh.batch, sh.flight, shapes[0])
		}
		if *opsFlag >= 5000 && r.doubled < 5 {
			t.Errorf("only %d names are given twice", r.doubled)
		}
		if *opsFlag >= 5000 && (r.killed < 5 || r.failed < 5) {
			t.Errorf("%d kills and %d other faults: the plans do not reach the engine", r.killed, r.failed)
		}
	}
}

// modelRun plays a script on a node, as a runtime does: it tries again what fails, and
// releases an owner that could not be taken before it tries again.
type modelRun struct {
	*node
	shape  shape
	script *script
	random *rand.Rand // for choices that the states do not depend on
	plan   plans

	mu       sync.Mutex
	standing map[string]hold.Owner // by name: Take has returned nil, and nobody has released it
	unsure   map[string][]hold.ID  // by name: incarnations that are to be released
	promised map[hold.ID]bool      // Release has returned nil
	needs    map[hold.ID][]hold.ID
	needers  map[hold.ID][]hold.ID // the owners that ever needed an owner
	leaves   map[hold.ID]span      // the time of the promise of an owner's release
	clock    int                   // of leaves: a step for each start and each end of a span
	loose    map[hold.ID]bool      // the owner may stand after its release, for owners that need it
	passed   map[string]bool       // by thing: its owner has lost it by a change, or may lose it by a rollback
	tried    map[string]bool       // by thing: its release was tried in this life
	ordered  map[hold.ID]bool
	joined   map[hold.ID]int
	with     map[hold.ID]hold.ID  // the owner with which a release has taken another one
	changing map[int]hold.Hold    // by step: the hold that a change takes away
	strays   map[hold.ID]bool     // owners of stray things, which nobody ever took
	untaken  map[hold.ID]bool     // Take has failed in this life
	seen     map[string]bool      // reservations that were acquired in this life
	parted   map[string]hold.Name // by thing: an address that a change takes away with the thing
	told     map[string]int       // by process: how many events in this life said that it has ended
	calls    *calls               // of this life
	api      api

	states                       []string
	steps, lives, killed, failed int
	doubled                      int // Takes that were refused because a lease was given another's name
}

func newModelRun(t *testing.T, seed uint64, sh shape) *modelRun {
	r := &modelRun{
		node:     bareNode(t),
		shape:    sh,
		script:   newScript(seed),
		random:   rand.New(rand.NewPCG(seed, uint64(sh.batch<<8|sh.flight))),
		standing: map[string]hold.Owner{},
		unsure:   map[string][]hold.ID{},
		promised: map[hold.ID]bool{},
		needs:    map[hold.ID][]hold.ID{},
		needers:  map[hold.ID][]hold.ID{},
		leaves:   map[hold.ID]span{},
		loose:    map[hold.ID]bool{},
		passed:   map[string]bool{},
		tried:    map[string]bool{},
		ordered:  map[hold.ID]bool{},
		joined:   map[hold.ID]int{},
		with:     map[hold.ID]hold.ID{},
		changing: map[int]hold.Hold{},
		strays:   map[hold.ID]bool{},
		untaken:  map[hold.ID]bool{},
		seen:     map[string]bool{},
		parted:   map[string]hold.Name{},
	}
	r.rest, r.rests = 1000*time.Hour, "address"
	r.world.before = r.watch
	return r
}

// watch sees every operation on the world.
func (r *modelRun) watch(_ context.Context, op string, h hold.Hold) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op != "cut" && !r.strays[h.Owner] {
		if err := r.api.ask(r, h.Spec.Kind()); err != nil {
			return err
		}
	}
	if op == "acquire" && r.promised[h.Owner] && !r.loose[h.Owner] {
		r.t.Errorf("%s is taken again though its owner was released", h.Spec)
	}
	if op == "acquire" && r.untaken[h.Owner] {
		r.t.Errorf("%s is taken though Take has failed", h.Spec)
	}
	for name, o := range r.standing {
		if op != "acquire" && o.ID == h.Owner && !r.passed[h.Spec.String()] {
			r.t.Errorf("%s %s: nobody has released %s", op, h.Spec, name)
		}
	}
	s := h.Spec.(*thing)
	if op == "acquire" && r.world.hasEnded(s) {
		r.t.Errorf("%s is taken again though it has ended", s)
	}
	if name, ok := r.parted[s.String()]; ok && op == "release" && s.K != "note" && r.holder(name) == "" && r.world.has(h) {
		r.t.Errorf("%s is free before %s, which went with it, is released", name, s)
	}
	if op == "acquire" && s.K == "lease" {
		r.seen[s.N] = true
	}
	if op == "release" && s.K == "lease" && s.Seen == "" && r.seen[s.N] && !s.Twice {
		r.t.Errorf("%s is released without what was discovered of it", s)
	}
	if op == "release" && s.K != "note" && !r.passed[s.String()] && !s.Twice { // a remnant may give back what has another's name
		r.watchOrder(h.Owner, s)
	}
	return nil
}

// loosen notes that an owner and the owners that it needs may stand after their release, for
// owners that need them.
func (r *modelRun) loosen(id hold.ID) {
	r.loose[id] = true
	for _, need := range r.needs[id] {
		r.loosen(need)
	}
}

func hasBlock(o hold.Owner) bool {
	_, ok := o.Find("block")
	return ok
}

// watchOrder checks the order of releases. When a thing of an owner goes, nothing is left of
// the owners that need that owner; of those that join it, and go ahead of it, everything was tried. When a
// reservation goes, nothing is left that uses it, and no reservation that came later.
func (r *modelRun) watchOrder(owner hold.ID, s *thing) {
	owed := map[string]bool{} // also of a call that began, and has not come here within its limit
	for _, o := range r.Owed("") {
		if o.Hold.Spec != nil {
			owed[o.Hold.Spec.String()] = true
		}
	}
	slow := r.Slow() // of a call that began, and has not come here within a tenth of its limit
	r.world.set(func() {
		for thing, id := range r.world.things {
			k, n, _ := strings.Cut(thing, " ")
			switch {
			case slices.Contains(r.needs[id], owner) && r.lead(id) != owner && k != "note", s.K == "lease" && id == owner && (isUse(k) || k == "lease" && place(n) > place(s.N)):
				r.t.Errorf("%s of %s is released before %s", s, owner, thing)
			case id == owner && r.ordered[id] && r.plan.Surfaced() == "" && s.isUse() && isUse(k) && !r.passed[thing] && !r.tried[thing] && !owed[thing] && place(n) > place(s.N):
				r.t.Errorf("%s of %s is released before %s was tried", s, owner, thing)
			case r.isAhead(id, owner) && r.plan.Surfaced() == "" && s.isUse() && isUse(k) && !r.passed[thing] && !r.tried[thing] && !owed[thing] && !slow[thing] && !r.stood(id, owner):
				r.t.Errorf("%s of %s is released before %s of %s, which goes ahead of it, was tried", s, owner, thing, id)
			}
		}
	})
}

// isAhead reports whether an owner is released ahead of another one: it joins the other one, or a release takes both with
// what both join.
func (r *modelRun) isAhead(id, other hold.ID) bool {
	lead := r.lead(id)
	if o, ok := r.ledger.Owner(id); !ok || o.Wanted() || r.stays(id) || lead == "" {
		return false
	}
	return lead == other || r.joined[id] > r.joined[other] && r.with[id] != "" && r.with[id] == r.with[other] && lead == r.lead(other)
}

// span is a time that the model knows only from its start and its end; end is 0 while it is not over.
type span struct{ start, end int }

// now is a time of its own, later than all earlier ones.
func (r *modelRun) now() int {
	r.clock++
	return r.clock
}

// stood reports whether an owner may still have stood, for an owner that needs it, when the release of another one was promised. The
// other one's holds may have been sent to their lines then, where they wait for no owner that begins to go later.
func (r *modelRun) stood(id, other hold.ID) bool {
	return slices.ContainsFunc(r.needers[id], func(needer hold.ID) bool {
		end := r.leaves[needer].end
		return r.loose[id] && (end == 0 || end > r.leaves[other].start) || r.stood(needer, other)
	})
}

// lead returns the owner that an owner joins; "": it joins none.
func (r *modelRun) lead(id hold.ID) hold.ID {
	return hold.Owner{Needs: r.needs[id], Joined: r.joined[id]}.Lead()
}

// place is where a thing stands in its owner's order. Things that a change has brought come
// last.
func place(name string) int {
	i, changed := strings.CutPrefix(name[strings.IndexByte(name, '-')+1:], "c")
	at, _ := strconv.Atoi(i)
	if changed {
		at += 1000
	}
	return at
}

func (t *thing) isUse() bool { return isUse(t.K) }

func isUse(kind string) bool { return kind == "wire" || kind == "rule" || kind == "proc" }

// play goes through a script, releases what is left, and looks for residue.
func (r *modelRun) play(steps int) {
	r.live(true)
	for r.steps < steps && !r.t.Failed() {
		wave := r.script.wave()
		r.steps += len(wave)
		r.insist(wave)
		if r.random.IntN(25) == 0 {
			r.restart(true)
		}
		if r.script.IntN(20) == 0 {
			r.settle()
		}
	}
	for _, n := range r.script.names {
		r.script.busy = map[string]int{}
		if _, ok := r.script.model[n]; ok && r.script.drop(n) {
			r.insist([]step{{verb: releasing, name: n}})
		}
	}
	r.settle()
	if left := r.world.residue(); left != empty {
		r.t.Errorf("world has %s, want %s", left, empty)
	}
	r.stop()
}

// insist takes all steps of a wave at once. If the engine ends, insist takes the steps that are not
// done again in the engine's next life.
func (r *modelRun) insist(wave []step) {
	for !r.t.Failed() {
		done := make([]bool, len(wave))
		var all sync.WaitGroup
		for i, s := range wave {
			all.Go(func() { done[i] = r.do(s) })
		}
		all.Wait()
		var undone []step
		for i, s := range wave {
			if !done[i] {
				undone = append(undone, s)
			}
		}
		if wave = undone; len(wave) == 0 {
			return
		}
		r.restart(true)
	}
}

// live starts an engine. In a faulty life one operation will fail or be the last. If the
// engine dies in Restore, live starts it again.
func (r *modelRun) live(faulty bool) {
	for {
		r.plan = newPlans(r.random)
		r.begin()
		if !faulty {
			r.plan.Heal()
		}
		r.lives++
		r.start(func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
			for i := range ks {
				ks[i].Batch, ks[i].Flight = r.shape.batch, r.shape.flight
				ks[i].Try, ks[i].Look = limits[ks[i].Name()].try, limits[ks[i].Name()].look
			}
			l, ks = r.plan.Decorate(l, ks)
			for i := range ks {
				ks[i] = r.calls.watch(r, ks[i])
			}
			return l, ks
		}, r.hear, slowly)
		err := r.Restore(r.t.Context())
		if !r.dead() {
			r.afterRestart(err)
			return
		}
		r.end()
	}
}

// begin forgets what is only true of the last life.
func (r *modelRun) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.untaken, r.seen, r.tried, r.told = map[hold.ID]bool{}, map[string]bool{}, map[string]bool{}, map[string]int{}
	r.calls, r.api = newCalls(), api{later: map[string]time.Time{}, asked: map[string]int{}, again: map[string]bool{}}
}

// slowly lets others do something between a drift's event and its repair. It also limits
// tries to less time than some calls hang.
func slowly(o *engine.Options) {
	tell := o.Event
	o.Try, o.Look = usual.try, usual.look
	o.Event = func(e engine.Event) {
		if tell(e); e.Type == "drift" {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// restart ends the engine's life, in whatever it is doing, and begins another.
func (r *modelRun) restart(faulty bool) {
	r.end()
	r.live(faulty)
}

func (r *modelRun) end() {
	r.wantTried()
	switch {
	case r.dead():
		r.killed++
	case r.plan.Surfaced() != "":
		r.failed++
	}
	r.stop()
}

func (r *modelRun) dead() bool { return r.plan.IsDead() }

// afterRestart checks what a new engine has made of the ledger. An owner that was taken is
// still wanted, and has all of its things, unless Restore failed. An owner that was released
// is not wanted.
func (r *modelRun) afterRestart(err error) {
	if err != nil && r.plan.Surfaced() == "" && !r.isTwice(err) {
		r.t.Errorf("restoring: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, o := range r.standing {
		if rec, ok := r.ledger.Owner(o.ID); !ok || !rec.Wanted() || !slices.Equal(rec.NamesIn("n"), o.NamesIn("n")) {
			r.t.Errorf("%s (%s) was taken, and after a restart it is %v", name, o.ID, rec)
		}
		for _, h := range o.Holds {
			if !r.world.has(h) && err == nil && !r.world.hasEnded(h.Spec.(*thing)) {
				r.t.Errorf("%s (%s) lacks its %s after a restart", name, o.ID, h.Spec)
			}
		}
	}
	for id := range r.promised {
		if rec, ok := r.ledger.Owner(id); ok && rec.Wanted() {
			r.t.Errorf("%s was released, and is wanted after a restart", id)
		}
	}
}

// settle ends the faults, waits until nothing is under way any more, and compares ledger and
// world with the model.
func (r *modelRun) settle() {
	if !r.dead() {
		r.wantTried()
	}
	if r.plan.Heal(); r.dead() {
		r.restart(false)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	for _, o := range r.ledger.Owners() {
		if o.Wanted() || r.stays(o.ID) {
			continue
		}
		if err := r.Wait(ctx, o.ID); err != nil {
			r.t.Errorf("waiting for %s: %v; owed %v; needed by %v; the fault was: %s", o, err, r.Owed(o.ID), r.ledger.Needers(o.ID), r.plan.Surfaced())
		}
	}
	for len(r.Owed("")) > 0 && ctx.Err() == nil { // a forget may have been written although its commit has failed
		time.Sleep(50 * time.Microsecond)
	}
	r.sweepAll(ctx)
	if rep := r.Audit(ctx); len(rep.Findings) > 0 {
		r.t.Errorf("audit: %v", rep.Findings)
	}
	state := r.state()
	r.states = append(r.states, state)
	r.setQuiet(false)
	if want := r.script.state(); state != want {
		r.t.Errorf("after %d steps the ledger and the world have\n%s\nwant\n%s", r.steps, state, want)
	}
	r.restart(true)
}

// sweepAll sweeps until missing things are back and things without an owner, which two
// sweeps have to see, are gone. That takes three sweeps, and more if a kind pauses, or if a
// busy machine makes a release outlast its try.
func (r *modelRun) sweepAll(ctx context.Context) {
	r.setQuiet(true)
	for sweeps, good := 0, 0; good < 3; {
		_, err := r.Sweep(ctx)
		if good++; err != nil {
			good = 0
			time.Sleep(time.Millisecond)
		}
		if sweeps++; sweeps == 1000 && err != nil {
			r.t.Errorf("sweep: %v", err)
			return
		}
	}
}

// setQuiet(true) ends the API's requests to pause, and waits until no kind pauses.
// setQuiet(false) lets the API make them again.
func (r *modelRun) setQuiet(quiet bool) {
	r.mu.Lock()
	r.api.quiet = quiet
	r.mu.Unlock()
	if quiet {
		time.Sleep(r.pause() + time.Millisecond)
	}
}

// stays reports whether an owner waits for another one that nobody has released.
func (r *modelRun) stays(id hold.ID) bool {
	return slices.ContainsFunc(r.ledger.Needers(id), func(needer hold.ID) bool {
		o, ok := r.ledger.Owner(needer)
		return ok && (o.Wanted() || r.stays(needer))
	})
}

// state says in words, without IDs, what the ledger and the world have.
func (r *modelRun) state() string {
	owners := r.ledger.Owners()
	names := map[hold.ID]string{}
	for _, o := range owners {
		names[o.ID] = strings.Join(o.NamesIn("n"), "+")
	}
	var lines []string
	things, users := 0, 0
	for _, o := range owners {
		var kinds []string
		for _, h := range o.Holds {
			s := h.Spec.(*thing)
			if s.K == "lease" && s.Seen == "" {
				kinds = append(kinds, "undiscovered")
			}
			for _, said := range s.Names() {
				if !slices.Contains(o.Names, said) {
					kinds = append(kinds, "unclaimed")
				}
			}
			if r.world.has(h) {
				things++
				kinds = append(kinds, s.K)
			} else if r.world.hasEnded(s) {
				kinds = append(kinds, "ended")
				if n := r.toldOf(s); n != 1 {
					r.t.Errorf("it was told %d times in this life that %s has ended", n, s)
				}
			}
			if s.Uses != "" {
				users++
			}
		}
		if !o.Wanted() {
			kinds = append(kinds, "releasing")
		}
		var needs []string
		for _, id := range o.Needs {
			needs = append(needs, names[id])
		}
		lines = append(lines, line(names[o.ID], needs, kinds, o.NamesIn("address")))
	}
	slices.Sort(lines)
	var rests []string
	for _, rest := range r.ledger.Resting() {
		rests = append(rests, rest.Name.Name)
	}
	lines = append(lines, resting(rests))
	r.world.set(func() {
		if len(r.world.things) != things || len(r.world.users) != users || len(r.world.cut) > 0 {
			lines = append(lines, fmt.Sprint("and more: ", r.world.things, r.world.users, r.world.cut))
		}
	})
	return strings.Join(lines, "\n")
}

func (w *world) hasEnded(t *thing) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended[t.String()]
}

// has reports whether a hold is there and not cut off.
func (w *world) has(h hold.Hold) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.things[h.Spec.String()] == h.Owner && !w.cut[h.Spec.String()]
}
