// Package fault makes the Nth operation of an engine fail, or the engine die
// there, as SQLite's tests do: a loop raises N until a run has no fault left.
// It is for tests; production code knows nothing of it.
package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// Mode says what happens at the Nth operation.
type Mode int

// The modes of a fault.
const (
	FailBefore  Mode = iota // it fails, with no effect
	FailAfter               // it has its effect, and fails all the same
	FailForever             // it and all others of its sort fail until Heal
	KillBefore              // the program ends before it
	KillAfter               // the program ends after its effect, before anybody knows
	modes
)

// Modes lists all modes.
func Modes() []Mode {
	all := make([]Mode, modes)
	for i := range all {
		all[i] = Mode(i)
	}
	return all
}

func (m Mode) String() string {
	return [...]string{"fail before", "fail after", "fail for ever", "kill before", "kill after"}[m]
}

// Kill reports whether the mode ends the program.
func (m Mode) Kill() bool { return m == KillBefore || m == KillAfter }

// What faulty operations answer.
var (
	ErrFault  = errors.New("injected fault")
	ErrKilled = errors.New("killed")
)

// Plan is one fault: at the Nth operation that goes through it, in Mode.
type Plan struct {
	N    int
	Mode Mode
	// Meet, if set, is called once, when the fault has happened and the program has not
	// ended: for who comes in at that moment. It must not wait for the operation.
	Meet func()

	mu     sync.Mutex
	count  int
	at     string // the operation at which the fault surfaced
	dead   bool
	sick   string // sort of operations that fail until Heal
	healed bool
	died   chan struct{}
}

// New returns a plan. N counts from 1.
func New(n int, m Mode) *Plan { return &Plan{N: n, Mode: m, died: make(chan struct{})} }

// Surfaced says at which operation the fault happened, or "".
func (p *Plan) Surfaced() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

// Dead is closed when the program has been killed: nothing it does has an
// effect any more.
func (p *Plan) Dead() <-chan struct{} { return p.died }

// Heal ends the plan: nothing fails or dies from now on, also not what is under
// way, but what is dead stays dead.
func (p *Plan) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healed = true
}

// Around runs one operation of a sort under the plan.
func (p *Plan) Around(sort, what string, f func() error) error {
	before, after := p.next(sort, what)
	if before != nil {
		return before
	}
	err := f()
	if after == nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed { // while it ran
		return err
	}
	if p.Mode == KillAfter {
		p.die()
	}
	return after
}

// next counts an operation, and says what it answers instead of running, or
// after it.
func (p *Plan) next(sort, what string) (before, after error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return ErrKilled, nil
	}
	if p.healed {
		return nil, nil
	}
	if p.sick == sort {
		return fmt.Errorf("%w (for ever) at %s", ErrFault, what), nil
	}
	if p.count++; p.count != p.N {
		return nil, nil
	}
	p.at = what
	if p.Meet != nil && !p.Mode.Kill() {
		go p.Meet()
	}
	err := fmt.Errorf("%w: %s %s", ErrFault, p.Mode, what)
	switch p.Mode {
	case FailBefore:
		return err, nil
	case FailForever:
		p.sick = sort
		return err, nil
	case KillBefore:
		p.die()
		return ErrKilled, nil
	case KillAfter:
		return nil, ErrKilled
	}
	return nil, err
}

func (p *Plan) die() {
	if !p.dead {
		p.dead = true
		close(p.died)
	}
}

// Decorate puts the plan between an engine, its ledger and its kinds.
func (p *Plan) Decorate(l engine.Ledger, ks hold.Kinds) (engine.Ledger, hold.Kinds) {
	out := make(hold.Kinds, len(ks))
	for i, k := range ks {
		out[i] = p.kind(k)
	}
	return &faultyLedger{l, p}, out
}

type faultyLedger struct {
	engine.Ledger
	plan *Plan
}

func (l *faultyLedger) Commit(ctx context.Context, ops ...ledger.Op) error {
	return l.plan.Around("commit", fmt.Sprintf("commit %T", ops[0]), func() error { return l.Ledger.Commit(ctx, ops...) })
}

func (p *Plan) kind(k hold.Kind) hold.Kind {
	name := k.Name()
	acquire, release, cut := k.Acquire, k.Release, k.Cut
	k.Acquire = func(ctx context.Context, h hold.Hold) error {
		return p.Around("acquire "+name, "acquire "+name, func() error { return acquire(ctx, h) })
	}
	k.Release = func(ctx context.Context, hs []hold.Hold) (errs []error) {
		err := p.Around("release "+name, "release "+name, func() error { errs = release(ctx, hs); return nil })
		if err != nil {
			errs = make([]error, len(hs))
			for i := range errs {
				errs[i] = err
			}
		}
		return errs
	}
	if cut != nil {
		k.Cut = func(ctx context.Context, h hold.Hold) error {
			return p.Around("cut "+name, "cut "+name, func() error { return cut(ctx, h) })
		}
	}
	return k
}
