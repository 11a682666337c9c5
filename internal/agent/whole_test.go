package agent

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/config"
	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/internal/node"
	"github.com/berth-net/berth/internal/node/nodetest"
	"github.com/berth-net/berth/internal/root"
)

var wholeFlag = flag.Int("whole", 20_000, "operations of the model of the whole, over all its runs")

// wholeShapes lists sizes of batches, and numbers of releases that run at once. Under each of these,
// a script must end in the same states. 0 means the kind's own number.
var wholeShapes = []struct{ batch, flight int }{{0, 0}, {1, 1}, {1, 32}, {3, 2}}

// wholeWaves is how many waves a script has: some 3,000 steps.
const wholeWaves = 1500

// TestWhole lets whole agents, with their ledgers on a disk and their nodes in
// memory, live through long random scripts (whole_script_test.go): ADD, DEL,
// CHECK, GC, STATUS, reloads and sweeps, at once and against each other;
// deletions while no agent answers, their replay, and damage to their queue;
// restarts, kills at any operation, reboots; pods that end, or whose paths lead
// elsewhere; and everything that others can do to a node. Time is synctest's.
//
// The rules are in whole_rules_test.go. A script that fails is cut down to the
// few waves that are needed for it to fail.
func TestWhole(t *testing.T) {
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	if testing.Short() {
		*wholeFlag = min(*wholeFlag, 10_000)
	}
	t.Logf("replay with -run TestWhole -seed %d -whole %d", seed, *wholeFlag)
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // without this, a third of the time goes into garbage collection
	began := time.Now()
	w := &wholes{seed: seed}
	t.Run("scripts", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				w.work(t)
			})
		}
	})
	t.Logf("%s; in %v", w.sum, time.Since(began).Round(time.Millisecond))
	if !t.Failed() && *wholeFlag >= 20_000 {
		w.sum.enough(t)
	}
}

// wholes is what the workers of TestWhole share.
type wholes struct {
	seed uint64

	mu      sync.Mutex
	scripts int
	sum     wholeSum
	failed  bool
}

// next returns the number of the next script.
func (w *wholes) next() (int, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scripts++
	return w.scripts - 1, w.sum.steps < *wholeFlag && !w.failed
}

func (w *wholes) work(t *testing.T) {
	for script, more := w.next(); more && !t.Failed(); script, more = w.next() {
		seeds := wholeSeeds(w.seed, script)
		var first []string
		for i := range wholeShapes {
			r := playWhole(t, seeds, i)
			if i == 0 {
				first = r.states
			}
			if r.failure == "" && !slices.Equal(r.states, first) {
				r.failure = fmt.Sprintf("other states than with batches of %v:\n%v\nand not\n%v", wholeShapes[0], r.states, first)
			}
			w.mu.Lock()
			w.sum.add(r.sum)
			w.failed = w.failed || r.failure != ""
			w.mu.Unlock()
			if r.failure != "" {
				t.Errorf("script %d, batches of %+v, after %d operations in all: %s\nwhat happened last:\n%s",
					script, wholeShapes[i], w.sum.steps, r.failure, r.story())
				shrinkWhole(t, seeds, r, i)
				return
			}
		}
	}
}

// wholeSeeds returns the seeds of a script's waves.
func wholeSeeds(seed uint64, script int) []uint64 {
	random := rand.New(rand.NewPCG(seed, uint64(script)))
	seeds := make([]uint64, wholeWaves)
	for i := range seeds {
		seeds[i] = random.Uint64()
	}
	return seeds
}

// shrinkWhole looks for a shorter script that fails, for a while, by leaving
// out waves, and tells what happens in it.
func shrinkWhole(t *testing.T, seeds []uint64, failed *wholeRun, shape int) {
	deadline := time.Now().Add(30 * time.Second)
	seeds = seeds[:min(len(seeds), failed.played)]
	for size := len(seeds) / 2; size > 0; size /= 2 {
		for at := 0; at < len(seeds) && time.Now().Before(deadline); {
			less := slices.Delete(slices.Clone(seeds), at, min(at+size, len(seeds)))
			if len(less) == 0 {
				break
			}
			if r := playWhole(t, less, shape); r.failure != "" {
				seeds, failed = less[:min(len(less), r.played)], r
			} else {
				at += size
			}
		}
	}
	t.Logf("%d waves are enough: %s\nwhat happens last:\n%s", len(seeds), failed.failure, failed.story())
}

// wholeRun is one script played to its end on one node.
type wholeRun struct {
	*Agent
	t      *testing.T
	world  *nodetest.Node
	root   root.Dir
	confs  map[bool]*config.Config // by whether the extra pool is in it
	shape  int
	script *wholeScript
	random *rand.Rand // from the wave's seed, for choices that the states do not depend on

	plan  *fault.Plan
	ails  ails
	ctx   context.Context // ends with the agent's life
	end   context.CancelFunc
	watch sync.WaitGroup

	pods [wholePods]*nodetest.Pod
	lost []*nodetest.Pod // pods whose paths lead elsewhere

	mu       sync.Mutex
	started  int64 // when the last request began
	standing map[int]*stay
	unsure   map[int]bool // containers to delete: nobody knows what became of them
	promised map[hold.ID]string
	holders  map[netip.Addr]tenancy
	queued   map[int]*stay    // deletions that may wait
	passed   map[int]int64    // when the last DEL of doRaceQueued began that has cut off what it found
	results  map[int][]string // the links that a container's ADDs have answered, the last one last
	replays  []savedFile
	damaged  int
	// disturbed says that a thing that all pods need may be missing.
	disturbed bool
	podless   map[hold.ID]bool // owners that a rebuild made from the kernel, which does not tell their pods
	refusals  map[hold.ID]bool // owners of ADDs that this life has answered with an error
	reloads   chan config.Reading

	failure string
	notes   []note
	states  []string
	played  int
	sum     wholeSum
}

// stay is an attachment as its runtime knows it.
type stay struct {
	id      hold.ID
	link    string
	raw     string
	addrs   []netip.Addr
	pod     *nodetest.Pod
	started int64 // when the ADD that made the attachment began
	hurt    bool  // somebody has damaged it
	anew    bool  // a rebuild made it from the kernel: every deletion comes after its ADD
}

// playWhole plays a script in a bubble of synctest.
func playWhole(t *testing.T, seeds []uint64, shape int) *wholeRun {
	dir := nettest.Memory(t)
	defer os.RemoveAll(dir)
	r := &wholeRun{
		t: t, root: root.Dir(dir), shape: shape, script: newWholeScript(),
		confs:    map[bool]*config.Config{},
		standing: map[int]*stay{}, unsure: map[int]bool{}, promised: map[hold.ID]string{}, holders: map[netip.Addr]tenancy{}, queued: map[int]*stay{}, passed: map[int]int64{}, results: map[int][]string{}, podless: map[hold.ID]bool{},
		sum: wholeSum{done: map[string]int{}},
	}
	synctest.Test(t, func(*testing.T) { r.play(seeds) })
	return r
}

func (r *wholeRun) play(seeds []uint64) {
	for _, extra := range []bool{false, true} {
		pools := []string{"default=10.88.0.0/26,fd00:88::/122", "exact=10.87.0.0/28,fd00:87::/122"}
		if extra {
			pools = append(pools, "extra=10.89.0.0/26,fd00:89::/122")
		}
		c, err := config.Load(r.root, config.Flags{Pools: pools})
		if err != nil {
			r.fail("configuration: %v", err)
			return
		}
		for i := range c.Pools {
			c.Pools[i].Cooldown = wholeCooldown
		}
		c.SweepInterval = wholeSweeps
		r.confs[extra] = c
	}
	r.world = nodetest.New()
	r.world.Pause = func() { time.Sleep(rand.N(10 * time.Millisecond)) }
	r.random = rand.New(rand.NewPCG(seeds[0], 3))
	for i := range r.pods {
		r.pods[i] = r.world.Pod(fmt.Sprintf("/run/netns/%d", i))
	}
	if !r.live(true) {
		return
	}
	for i, seed := range seeds {
		r.random = rand.New(rand.NewPCG(seed, 3))
		wave := r.script.wave(seed)
		r.sum.steps += len(wave)
		r.insist(wave)
		r.rules()
		if seed%64 == 0 {
			r.settle()
		}
		if r.played = i + 1; r.failure != "" {
			break
		}
		if seed%2 == 0 { // otherwise the work that goes on behind the answers meets the next wave
			time.Sleep(time.Duration(r.script.Int64N(int64(3 * time.Second))))
		}
	}
	r.finale()
	// After this minute the work for which nobody waits has ended: a pause before a commit, and the
	// work that the agent did aside when it was closed (ground.aside).
	time.Sleep(time.Minute)
}

// insist takes a wave's steps at once. If the agent dies, insist takes the steps that are not done
// again in the agent's next life.
func (r *wholeRun) insist(wave []wholeStep) {
	for r.failure == "" {
		done := make([]bool, len(wave))
		for _, s := range wave {
			if s.verb == "ail" {
				r.fallIll(s)
			}
		}
		var all sync.WaitGroup
		for i, s := range wave {
			all.Go(func() { done[i] = r.do(s) })
		}
		all.Wait()
		var undone []wholeStep
		for i, s := range wave {
			if !done[i] {
				undone = append(undone, s)
			}
		}
		if wave = undone; r.dead() {
			r.restart(true)
		} else if len(wave) > 0 && r.failure == "" {
			r.fail("not done, and the agent lives: %v", wave)
		}
		if len(wave) == 0 {
			return
		}
	}
}

// live starts an agent. An operation of a faulty agent will fail, or be the agent's last. If the agent
// dies at its start, live starts it again.
func (r *wholeRun) live(faulty bool) bool {
	for try := 0; r.failure == ""; try++ {
		modes := fault.Modes()
		r.plan = fault.New(1+r.random.IntN(400), modes[r.random.IntN(len(modes))])
		if !faulty || try > 10 {
			r.plan.Heal()
		}
		r.sum.lives++
		r.mu.Lock()
		r.refusals = map[hold.ID]bool{}
		r.mu.Unlock()
		if err := r.openAgent(r.world.Open(r.plan, r.linkRules)); err != nil {
			r.fail("opening: %v", err)
			return false
		}
		r.ctx, r.end = r.plan.Context(context.Background())
		a, ctx := r.Agent, r.ctx // as Run does
		reloads := make(chan config.Reading)
		r.reloads = reloads
		life := a.life(a.ground.Config(), reloads)
		begin := func(all []func(context.Context)) {
			for _, do := range all {
				r.watch.Go(func() { do(ctx) })
			}
		}
		begin(life.Early)
		err := a.Restore(ctx)
		begin(life.Own)
		begin(life.Later)
		r.watch.Go(func() { a.core.KeepSwept(ctx, life) })
		if err != nil && r.spotless() {
			r.fail("restoring: %v", err)
		}
		if err == nil && !r.dead() {
			r.afterRestart()
			r.deleteUnsure()
		}
		if !r.dead() {
			return r.failure == ""
		}
		r.finish()
	}
	return false
}

func (r *wholeRun) openAgent(kernel func() (*node.Node, error)) (err error) {
	r.Agent, err = open(r.options(), kernel, true)
	return err
}

// reopen opens the agent without faults, and begins no life.
func (r *wholeRun) reopen() {
	var err error
	r.plan = fault.New(1, fault.Modes()[0])
	r.plan.Heal()
	if r.Agent, err = open(r.options(), r.world.Open(r.plan, r.linkRules), false); err != nil {
		r.fail("opening: %v", err)
	}
	r.ctx, r.end = r.plan.Context(context.Background())
}

func (r *wholeRun) options() Options {
	shape := wholeShapes[r.shape]
	return Options{
		Config: r.confs[r.script.extra], Version: "test",
		Options: daemon.Options{
			Root: r.root, Log: slog.New(slog.DiscardHandler),
			Decorate: func(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
				for i := range ks {
					if shape.batch > 0 {
						ks[i].Batch, ks[i].Flight = shape.batch, shape.flight
					}
				}
				return r.decorate(l, ks)
			},
		},
	}
}

// finish ends the agent's life, whatever the agent is doing.
func (r *wholeRun) finish() {
	switch {
	case r.dead():
		r.sum.killed++
	case r.plan.Surfaced() != "":
		r.sum.failed++
	}
	r.disturbed = r.disturbed || !r.spotless()
	r.note("the life ends; its fault was to %s, at %q", r.plan.Mode, r.plan.Surfaced())
	r.end()
	r.ails.heal(true)
	r.watch.Wait()
	if err := r.Agent.Close(); err != nil {
		r.fail("closing: %v", err)
	}
}

func (r *wholeRun) restart(faulty bool) {
	r.finish()
	r.live(faulty)
}

func (r *wholeRun) dead() bool { return r.plan.IsDead() }

// fail ends the run. The run tells only the first failure.
func (r *wholeRun) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == "" {
		r.failure = fmt.Sprintf(format, args...)
	}
}

// note remembers what happened. A run that fails tells the last notes.
func (r *wholeRun) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == "" {
		r.notes = append(r.notes, note{format, args})
		if len(r.notes) > 60 {
			r.notes = slices.Delete(r.notes, 0, 30)
		}
	}
}

// note is something that happened. Only a run that fails tells its notes.
type note struct {
	format string
	args   []any
}

// story returns the notes of what happened last.
func (r *wholeRun) story() string {
	var all strings.Builder
	for _, n := range r.notes {
		fmt.Fprintf(&all, n.format+"\n", n.args...)
	}
	return all.String()
}

// wholeSum counts what was done.
type wholeSum struct {
	steps, lives, killed, failed, boots int
	done                                map[string]int
}

func (s *wholeSum) add(o wholeSum) {
	s.steps, s.lives, s.killed, s.failed, s.boots = s.steps+o.steps, s.lives+o.lives, s.killed+o.killed, s.failed+o.failed, s.boots+o.boots
	if s.done == nil {
		s.done = map[string]int{}
	}
	for verb, n := range o.done {
		s.done[verb] += n
	}
}

func (s wholeSum) String() string {
	return fmt.Sprintf("%d operations (%v) in %d lives, of which %d were killed and %d had another fault, %d reboots",
		s.steps, s.done, s.lives, s.killed, s.failed, s.boots)
}

// enough fails a test whose runs have left out a verb, or had too few kills and faults.
func (s wholeSum) enough(t *testing.T) {
	for _, verb := range wholeVerbs {
		if s.done[verb] == 0 {
			t.Errorf("no step is a %s", verb)
		}
	}
	if s.killed < 10 || s.failed < 10 {
		t.Errorf("%d kills and %d other faults: the plans do not reach the agent", s.killed, s.failed)
	}
}
