package kindtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/kindtest/toy"
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// meanwhile has what may happen beside a fault when the fault surfaces.
var meanwhile = map[string]func(*life){
	"nothing":              func(*life) {},
	"the process ends":     (*life).end,
	"the address is lost":  func(l *life) { l.api.Lose(l.pod.Holds[0]) },
	"the API is throttled": func(l *life) { l.api.Throttle(3 * time.Second) },
	"the block is revoked": func(l *life) { l.aside(func() { _ = l.Release(context.Background(), []hold.ID{l.block.ID}) }) },
}

// TestOptionsFaults lets each operation of a small life fail, hang or be the last, while something else
// happens. It is the life of a pod. The pod has an address which an API chooses, three rules and a
// process, which the engine releases in order. The pod needs a block, whose release waits for the pod.
// The API gives the pod's address to a rival, too. A change takes a rule and a name from the pod, and
// gives the pod another rule, another name and one of the block's names. The API's kinds have all
// options that there are. Time is that of the test's bubble (testing/synctest).
func TestOptionsFaults(t *testing.T) {
	modes := append(fault.Modes(), fault.Hangs()...)
	points := 0
	for beside := range meanwhile {
		step := 1
		if beside != "nothing" { // each run tests every third point, and other runs test other points
			step = 3
		}
		points += fault.Each(t, beside, modes, 1+rand.IntN(step), step, func(newPlan func() *fault.Plan) {
			synctest.Test(t, func(t *testing.T) { newLife(t, newPlan(), meanwhile[beside]).run() })
		})
	}
	t.Logf("fault points covered: %d; residue: 0", points)
	if points < 200 {
		t.Errorf("only %d fault points: the plan does not reach the engine", points)
	}
}

// life is an engine with the toy kinds, and what the test knows of them.
type life struct {
	*engine.Engine
	t      *testing.T
	api    *toy.API
	plan   *fault.Plan
	beside func()
	path   string
	ledger *ledger.Ledger
	steps  sync.WaitGroup

	block, pod, rival hold.Owner
	gained            hold.Hold // the rule that the pod gets by the change
	stands            bool      // Take has returned nil for the pod, and nobody has released it
	changed           outcome

	mu    sync.Mutex
	ended bool            // the process has come to its end
	told  int             // how many events in this life said that the process has ended
	tried map[string]bool // things whose release the engine has tried in this life
}

func newLife(t *testing.T, plan *fault.Plan, beside func(*life)) *life {
	l := &life{t: t, api: toy.New(), plan: plan, path: filepath.Join(nettest.Memory(t), "ledger.db")}
	l.beside = sync.OnceFunc(func() { beside(l) })
	l.block = ownerOf("block", "pool")
	l.pod = ownerOf("pod", "address", "rule a", "rule b", "proc", "rule old")
	l.rival = ownerOf("rival", "address")
	l.gained = ownerOf("", "rule new").Holds[0]
	l.gained.Owner = l.pod.ID
	l.block.Names, l.pod.Names = append(l.block.Names, spare), append(l.pod.Names, oldName)
	l.pod.Needs, l.pod.Ordered = []hold.ID{l.block.ID}, true
	plan.Looks = true
	plan.Beside = func(string) {
		l.beside()
		if plan.Mode.Hangs() {
			time.AfterFunc(5*time.Second, plan.Heal)
		}
	}
	return l
}

// ownerOf makes an owner that holds things of the API.
func ownerOf(name string, things ...string) hold.Owner {
	o := hold.Owner{ID: hold.NewID(), Names: []hold.Name{{Space: "n", Name: name}}}
	for _, thing := range things {
		kind, place, _ := strings.Cut(thing, " ")
		o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: &toy.Spec{K: kind, Place: place + string(o.ID)}})
	}
	return o
}

func (l *life) start(decorate func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)) {
	kinds := hold.Kinds{
		l.api.Kind("address", hold.Reserve, toy.Limited),
		l.api.Kind("rule", hold.Use),
		l.api.Kind("proc", hold.Use, toy.Ends),
		l.api.Kind("pool", hold.Reserve, toy.Waits, toy.Limited),
	}
	var err error
	l.ledger, err = ledger.Open(ledger.Options{Path: l.path, Kinds: kinds})
	nettest.Must(l.t, err)
	l.mu.Lock()
	l.told, l.tried = 0, map[string]bool{}
	l.mu.Unlock()
	from, ks := decorate(l.ledger, kinds)
	for i := range ks {
		ks[i] = l.watch(ks[i])
	}
	l.Engine = engine.New(engine.Options{
		Ledger: from, Kinds: ks, Event: l.hear,
		Try: time.Second, Backoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
	})
}

// watch checks the calls of a kind, each of which is about one hold. No call begins while the engine
// knows that the call is too early, and each call has the limit that the kind says. If an owner is
// Ordered, the engine first tries to release what it acquired last. No thing of the block goes while
// the pod is there.
func (l *life) watch(k hold.Kind) hold.Kind {
	acquire, release := k.Acquire, k.Release
	var heard struct{ from, until time.Time } // the last pause; life.mu guards it
	asks := func(h hold.Hold) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if now := time.Now(); heard.from.Before(now) && now.Before(heard.until) {
			l.t.Errorf("the API is asked for %s, %s before it may be", h, heard.until.Sub(now))
		}
	}
	hears := func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if later, ok := errors.AsType[*hold.LaterError](err); ok && later.At.After(heard.until) {
			heard.from, heard.until = time.Now(), later.At
		}
	}
	k.Acquire = func(ctx context.Context, h hold.Hold) error {
		asks(h)
		err := acquire(ctx, h)
		hears(err)
		return err
	}
	k.Release = func(ctx context.Context, hs []hold.Hold) []error {
		asks(hs[0])
		end, ok := ctx.Deadline()
		if left := time.Until(end); !ok || k.Try > 0 && left != k.Try || k.Try == 0 && left != time.Second {
			l.t.Errorf("releasing %s may take %s", hs[0], left)
		}
		l.mu.Lock()
		s := hs[0].Spec.String()
		l.tried[s] = true
		for i, h := range l.pod.Holds[1:] {
			if s != h.Spec.String() {
				continue
			}
			for _, later := range l.pod.Holds[i+2:] {
				if l.api.Has(later) && !l.tried[later.Spec.String()] {
					l.t.Errorf("%s is released before %s", s, later.Spec)
				}
			}
		}
		if s == l.block.Holds[0].Spec.String() && slices.ContainsFunc(append(slices.Clip(l.pod.Holds), l.gained), l.api.Has) {
			l.t.Errorf("%s is released while the pod has %q", s, l.api)
		}
		l.mu.Unlock()
		errs := release(ctx, hs)
		hears(errs[0])
		return errs
	}
	return k
}

func (l *life) hear(e engine.Event) {
	if e.Type != engine.Ended {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told++; l.told > 1 {
		l.t.Errorf("it is told %d times that the process has ended", l.told)
	}
}

// end lets the process come to its end, if the process has begun.
func (l *life) end() {
	h := l.pod.Holds[3]
	if l.api.Has(h) {
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
		l.api.End(h)
	}
}

func (l *life) aside(f func()) { l.steps.Go(f) }

func (l *life) run() {
	l.start(l.plan.Decorate)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	l.live(ctx)
	l.plan.Heal()
	l.steps.Wait()
	if l.dead() {
		l.stop()
		l.start(func(from engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) { return from, ks })
		if err := l.Restore(ctx); err != nil && !errors.Is(err, toy.ErrOften) && !isTwice(err) {
			l.t.Errorf("restoring: %v", err)
		}
	}
	l.whole(ctx)
	all := []hold.ID{l.pod.ID, l.block.ID, l.rival.ID}
	if err := l.Release(ctx, all); err != nil {
		l.t.Errorf("releasing all: %v", err)
	}
	if err := l.Wait(ctx, all...); err != nil {
		l.t.Errorf("waiting: %v; owed %v", err, l.Owed(""))
	}
	if left := l.ledger.Owners(); len(left) > 0 || l.api.String() != "" {
		l.t.Errorf("left: %v, %q", left, l.api)
	}
	l.stop()
}

func (l *life) stop() {
	l.Close()
	if err := l.ledger.Close(); err != nil {
		l.t.Error(err)
	}
}

func (l *life) dead() bool { return l.plan.IsDead() }

// live is what the test does until the faults end, whatever fails. live revokes the block, which stands
// as long as the pod does.
func (l *life) live(ctx context.Context) {
	// Take fills in specs: the test gives it copies, so that the test's own specs stay as they are.
	_ = l.Take(ctx, ownCopy(l.block))
	l.stands = l.Take(ctx, ownCopy(l.pod)) == nil
	l.compete(ctx)
	l.change(ctx)
	if l.plan.N > 20 {
		l.beside()
	}
	_, _ = l.Sweep(ctx)
	_ = l.Release(ctx, []hold.ID{l.block.ID})
	_, _ = l.Sweep(ctx)
	if l.plan.N%2 == 0 {
		l.stands = false
		_ = l.Release(ctx, []hold.ID{l.pod.ID})
	}
}

func ownCopy(o hold.Owner) hold.Owner {
	o = o.Clone()
	for i := range o.Holds {
		o.Holds[i] = ownHold(o.Holds[i])
	}
	return o
}
