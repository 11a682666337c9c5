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
	"github.com/berth-net/berth/internal/ledger"
	"github.com/berth-net/berth/internal/nettest"
)

// meanwhile has what may happen beside a fault when the fault surfaces.
var meanwhile = map[string]func(*life){
	"nothing":              func(*life) {},
	"the process ends":     (*life).end,
	"the address is lost":  func(l *life) { l.api.lose(l.pod.Holds[0]) },
	"the API is throttled": func(l *life) { l.api.throttle(3 * time.Second) },
	"the block is revoked": func(l *life) { l.aside(func() { _ = l.Release(context.Background(), []hold.ID{l.block.ID}) }) },
}

// TestOptionsFaults lets each operation of a small life fail, hang or be the last, while
// something else happens. It is the life of a pod that has an address which an API chooses,
// two rules and a process, which are released in order. The pod needs a block, whose release
// waits for the pod. The API's kinds have all options that there are. Time is the bubble's.
func TestOptionsFaults(t *testing.T) {
	modes := append(fault.Modes(), fault.Hangs()...)
	points := 0
	for beside := range meanwhile {
		for _, mode := range modes {
			step := 1
			if beside != "nothing" { // every third, at least, and others in other runs
				step = 3
			}
			for at := 1 + rand.IntN(step); ; at += step {
				surfaced := ""
				synctest.Test(t, func(t *testing.T) {
					l := newLife(t, fault.New(at, mode), meanwhile[beside])
					l.run()
					surfaced = l.plan.Surfaced()
				})
				if t.Failed() {
					t.Fatalf("%s at operation %d (%s), and %s", mode, at, surfaced, beside)
				}
				if surfaced == "" {
					break
				}
				points++
			}
		}
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
	api    *api
	plan   *fault.Plan
	beside func()
	path   string
	ledger *ledger.Ledger
	steps  sync.WaitGroup

	block, pod hold.Owner
	stands     bool // Take has returned nil for the pod, and nobody has released it

	mu    sync.Mutex
	ended bool            // the process has come to its end
	told  int             // how many events in this life said so
	tried map[string]bool // things whose release was tried in this life
}

func newLife(t *testing.T, plan *fault.Plan, beside func(*life)) *life {
	l := &life{t: t, api: newAPI(), plan: plan, path: filepath.Join(nettest.Memory(t), "ledger.db")}
	l.beside = sync.OnceFunc(func() { beside(l) })
	l.block = ownerOf("block", "pool")
	l.pod = ownerOf("pod", "address", "rule a", "rule b", "proc")
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

// ownerOf makes an owner of things of the API.
func ownerOf(name string, things ...string) hold.Owner {
	o := hold.Owner{ID: hold.NewID(), Names: []hold.Name{{Space: "n", Name: name}}}
	for _, thing := range things {
		kind, place, _ := strings.Cut(thing, " ")
		o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: &grantSpec{K: kind, Place: place + string(o.ID)}})
	}
	return o
}

func (l *life) start(decorate func(engine.Ledger, hold.Kinds) (engine.Ledger, hold.Kinds)) {
	kinds := hold.Kinds{
		l.api.kind("address", hold.Reserve, thatIsLimited),
		l.api.kind("rule", hold.Use),
		l.api.kind("proc", hold.Use, thatEnds),
		l.api.kind("pool", hold.Reserve, thatWaits, thatIsLimited),
	}
	var err error
	if l.ledger, err = ledger.Open(ledger.Options{Path: l.path, Kinds: kinds}); err != nil {
		l.t.Fatal(err)
	}
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

// watch checks the calls of a kind, each of which is about one hold. None begins while the
// engine knows that it is too early, and each has the limit that the kind says. If an owner
// is Ordered, what was acquired later is tried first. Nothing of the block goes while the
// pod is there.
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
				if l.has(later) && !l.tried[later.Spec.String()] {
					l.t.Errorf("%s is released before %s", s, later.Spec)
				}
			}
		}
		if s == l.block.Holds[0].Spec.String() && slices.ContainsFunc(l.pod.Holds, l.has) {
			l.t.Errorf("%s is released while the pod has %q", s, l.api.has())
		}
		l.mu.Unlock()
		errs := release(ctx, hs)
		hears(errs[0])
		return errs
	}
	return k
}

// has reports whether a hold is there, also while the API answers otherwise.
func (l *life) has(h hold.Hold) bool {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	return l.api.grants[h.Spec.String()].owner == h.Owner
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

// end lets the process come to its end, if it has begun.
func (l *life) end() {
	h := l.pod.Holds[3]
	if l.has(h) {
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
		l.api.lose(h)
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
		if err := l.Restore(ctx); err != nil && !errors.Is(err, errOften) {
			l.t.Errorf("restoring: %v", err)
		}
	}
	l.whole(ctx)
	all := []hold.ID{l.pod.ID, l.block.ID}
	if err := l.Release(ctx, all); err != nil {
		l.t.Errorf("releasing all: %v", err)
	}
	if err := l.Wait(ctx, all...); err != nil {
		l.t.Errorf("waiting: %v; owed %v", err, l.Owed(""))
	}
	if left := l.ledger.Owners(); len(left) > 0 || l.api.has() != "" {
		l.t.Errorf("left: %v, %q", left, l.api.has())
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

// live is what the test does until the faults end, whatever fails. The block is revoked, and
// stands as long as the pod does.
func (l *life) live(ctx context.Context) {
	// Take fills in specs: it gets copies, so that the test's own stay as they are.
	_ = l.Take(ctx, ownCopy(l.block))
	l.stands = l.Take(ctx, ownCopy(l.pod)) == nil
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
		s := *o.Holds[i].Spec.(*grantSpec)
		o.Holds[i].Spec = &s
	}
	return o
}

// whole checks that owners that stand have all that they took, with the names that were
// discovered. Only the process may be missing, if it has ended and an event has said so.
func (l *life) whole(ctx context.Context) {
	time.Sleep(10 * time.Second) // until nothing is throttled
	if _, err := l.Sweep(ctx); err != nil {
		l.t.Errorf("sweep: %v", err)
	}
	pod, ok := l.ledger.Owner(l.pod.ID)
	if !ok || !pod.Wanted() || l.Doomed(pod.ID) {
		if l.stands {
			l.t.Errorf("the pod was taken, and released by nobody: %v", pod)
		}
		return
	}
	l.mu.Lock()
	ended, told := l.ended, l.told
	l.mu.Unlock()
	block, ok := l.ledger.Owner(l.block.ID)
	if !ok {
		l.t.Error("the pod stands, and its block is gone")
	}
	for _, h := range append(pod.Holds, block.Holds...) {
		is, proc := l.has(h), h.Spec.Kind() == "proc"
		if !is && (!proc || told == 0) || is && proc && ended {
			l.t.Errorf("%s is there: %t; it has ended: %t, as was told %d times", h.Spec, is, ended, told)
		}
		for _, name := range namesOf(h) {
			if id, _ := l.ledger.Holder(name); id != h.Owner {
				l.t.Errorf("%s says %s, which is %q's", h.Spec, name, id)
			}
		}
		if is && len(namesOf(h)) == 0 {
			l.t.Errorf("nobody has written down what %s is", h.Spec)
		}
	}
	if rep := l.Audit(ctx); len(rep.Findings) > 0 {
		l.t.Errorf("audit: %v", rep.Findings)
	}
}
