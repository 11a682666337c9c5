package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/ledger"
)

// Besides the one fault of each life, there are ails: for a while, an operation of a kind fails
// or hangs, on everybody's holds or on those of one container, or the disk takes no write. A
// wave has an ail and, with it, a step about the same container (wholeScript.wave): so faults
// and interleavings, stale inputs, clock steps and hangs come in pairs.

// errAil is the error of an operation that does not work for a while.
var errAil = errors.New("it ails")

// ail is one thing that does not work.
type ail struct {
	op, kind string // kind: "" is any
	c        int    // the container whose holds ail; -1: everybody's
	times    int    // how often the operation fails; 0: it hangs, or it fails until the ail is over
	hangs    bool
	deaf     bool // a hanging operation ignores the end of its context
	over     chan struct{}
	ended    time.Time
	then     *ail // the ail that begins when this one has failed the operation `times` times
	lost     bool // an operation that hangs has ended with its program
}

func (x *ail) String() string {
	return fmt.Sprintf("%s %s of c%d, %d times, hangs %t, deaf %t", x.op, x.kind, x.c, x.times, x.hangs, x.deaf)
}

// aFewAtOnce is how many things ail at most.
const aFewAtOnce = 3

// ails are the operations that do not work now.
type ails struct {
	mu   sync.Mutex
	list []*ail
	past []*ail // the ails that have ended lately
	ever bool   // something has ailed since all was well
	deaf bool   // since then, an operation has hung and ignored its context

	promised func(hold.ID) bool // reports whether an owner's release is promised
	outlived sync.Map           // owners (hold.ID) with an Acquire that hangs, and began before the owner's release was promised
}

// begin lets something ail for a while.
func (a *ails) begin(x *ail, lasting time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) >= aFewAtOnce {
		return
	}
	x.over = make(chan struct{})
	a.list, a.ever, a.deaf = append(a.list, x), true, a.deaf || x.hangs && x.deaf
	time.AfterFunc(lasting, func() { a.end(x, false) })
}

func (a *ails) end(x *ail, lost bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.list, x); i >= 0 {
		a.list = slices.Delete(a.list, i, i+1)
		x.lost, x.ended = lost, time.Now()
		a.past = append(a.past, x)
		close(x.over)
	}
}

// heal ends all ails. What hangs goes on, unless its program has ended.
func (a *ails) heal(lost bool) {
	a.mu.Lock()
	list := slices.Clone(a.list)
	a.mu.Unlock()
	for _, x := range list {
		a.end(x, lost)
	}
}

// well notes that all has settled.
func (a *ails) well() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ever, a.deaf = len(a.list) > 0, false
}

// any reports whether something has ailed since all was well. deafly reports whether an operation
// has hung since then and ignored its context.
func (a *ails) any() (ever, deafly bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ever, a.deaf
}

// lately reports whether an operation ails, or ailed so lately that nobody may have tried it again
// yet. An empty kind means any kind.
func (a *ails) lately(op, kind string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.past = slices.DeleteFunc(a.past, func(x *ail) bool { return time.Since(x.ended) > 70*time.Second })
	is := func(x *ail) bool { return x.op == op && (kind == "" || x.kind == kind) }
	return slices.ContainsFunc(a.list, is) || slices.ContainsFunc(a.past, is)
}

// meet lets an operation on a container's hold fail or hang, if an ail of the list is about this
// operation. of returns the container.
func (a *ails) meet(ctx context.Context, op, kind string, of func() int) error {
	a.mu.Lock()
	i := slices.IndexFunc(a.list, func(x *ail) bool {
		return x.op == op && (x.kind == "" || x.kind == kind) && (x.c < 0 || x.c == of())
	})
	if i < 0 {
		a.mu.Unlock()
		return nil
	}
	x := a.list[i]
	last := false
	if x.times > 0 {
		x.times--
		last = x.times == 0
	}
	a.mu.Unlock()
	if last {
		a.end(x, false)
		if x.then != nil {
			next := *x.then
			a.begin(&next, 3*time.Second)
		}
	}
	if !x.hangs {
		return errAil
	}
	if x.deaf {
		ctx = context.Background()
	}
	select {
	case <-x.over:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if x.lost {
		return fault.ErrKilled
	}
	return nil
}

// decorate puts the ails before the plan, and the plan before the kinds. It puts ruleTraffic between
// the plan and the kinds.
func (r *wholeRun) decorate(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
	owners := l
	of := func(id hold.ID) func() int {
		return func() int {
			o, _ := owners.Owner(id)
			rec, ok, err := attachment.Decode(o)
			if !ok || err != nil {
				return -2
			}
			var c int
			_, _ = fmt.Sscanf(rec.ContainerID, "c%d", &c)
			return c
		}
	}
	holders := l.(interface {
		Holder(hold.Name) (hold.ID, bool)
	})
	for i := range ks {
		if ks[i].Name() == flows.KindName {
			r.ruleTraffic(&ks[i], holders)
		}
	}
	l, ks = r.plan.Decorate(l, ks)
	for i := range ks {
		r.ails.promised = r.isPromised
		r.ails.infect(&ks[i], of)
	}
	return &ailingLedger{l, &r.ails, r.world.Pause}, ks
}

type ailingLedger struct {
	engine.Ledger
	ails  *ails
	pause func()
}

func (l *ailingLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	if err := l.ails.meet(ctx, "commit", "", func() int { return -2 }); err != nil {
		return err
	}
	if rand.N(4) == 0 { // others come in between the look and the commit
		l.pause()
	}
	return l.Ledger.Commit(ctx, ops...)
}

// infect lets a kind's operations ail.
func (a *ails) infect(k *hold.Kind, of func(hold.ID) func() int) {
	name := k.Name()
	acquire, release, cut, verify, find := k.Acquire, k.Release, k.Cut, k.Verify, k.Find
	k.Acquire = func(ctx context.Context, h hold.Hold) error {
		before := a.promised(h.Owner)
		if err := a.meet(ctx, "acquire", name, of(h.Owner)); err != nil {
			return err
		}
		if !before && a.promised(h.Owner) { // nobody can stop this Acquire any more: its owner's departure waits for it
			a.outlived.Store(h.Owner, nil)
			defer a.outlived.Delete(h.Owner)
		}
		return acquire(ctx, h)
	}
	each := func(ctx context.Context, op string, hs []hold.Hold, do func(context.Context, []hold.Hold) []error) []error {
		errs := make([]error, len(hs))
		var well []hold.Hold
		var at []int
		for i, h := range hs {
			if errs[i] = a.meet(ctx, op, name, of(h.Owner)); errs[i] == nil {
				well, at = append(well, h), append(at, i)
			}
		}
		if len(well) > 0 {
			for i, err := range do(ctx, well) {
				errs[at[i]] = err
			}
		}
		return errs
	}
	k.Release = func(ctx context.Context, hs []hold.Hold) []error { return each(ctx, "release", hs, release) }
	k.Verify = func(ctx context.Context, look *hold.Look, hs []hold.Hold) []error {
		return each(ctx, "verify", hs, func(ctx context.Context, hs []hold.Hold) []error { return verify(ctx, look, hs) })
	}
	if cut != nil {
		k.Cut = func(ctx context.Context, h hold.Hold) error {
			if err := a.meet(ctx, "cut", name, of(h.Owner)); err != nil {
				return err
			}
			return cut(ctx, h)
		}
	}
	if find != nil {
		k.Find = func(ctx context.Context, look *hold.Look) ([]hold.Hold, error) {
			if err := a.meet(ctx, "find", name, func() int { return -2 }); err != nil {
				return nil, err
			}
			return find(ctx, look)
		}
	}
}

// ruleTraffic fails if an owner deletes the tracked flows of an address that belongs to another
// owner.
func (r *wholeRun) ruleTraffic(k *hold.Kind, holders interface {
	Holder(hold.Name) (hold.ID, bool)
}) {
	release := k.Release
	k.Release = func(ctx context.Context, hs []hold.Hold) []error {
		for _, h := range hs {
			for _, a := range h.Spec.(*flows.Spec).Addresses {
				if id, held := holders.Holder(ipam.Name(a)); held && id != h.Owner {
					r.fail("%s: released by %s, and %s is %s's", h.Spec, h.Owner, a, id)
				}
			}
		}
		return release(ctx, hs)
	}
}
