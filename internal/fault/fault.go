// Package fault makes the Nth operation of an engine fail, or the engine die
// there, as SQLite's tests do: a loop raises N until a run has no fault left.
// It is for tests; production code knows nothing of it.
package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-net/berth/internal/hold"
)

// Mode says what happens at the Nth operation.
type Mode int

// The modes of a fault.
const (
	FailBefore  Mode = iota // the operation fails, and has no effect
	FailAfter               // the operation has its effect, and fails all the same
	FailForever             // it and all others of its sort fail until Heal
	KillBefore              // the program ends before the operation
	KillAfter               // the program ends after the operation's effect, before it returns
	Hang                    // it and all others of its sort hang until their contexts end, or until Heal
	HangDeaf                // it and all others of its sort hang until Heal, whatever their contexts say
)

// Modes lists the modes in which every operation returns: none waits for Heal.
func Modes() []Mode {
	all := make([]Mode, KillAfter+1)
	for i := range all {
		all[i] = Mode(i)
	}
	return all
}

// Hangs lists the modes in which operations hang.
func Hangs() []Mode { return []Mode{Hang, HangDeaf} }

func (m Mode) String() string {
	return [...]string{"fail before", "fail after", "fail for ever", "kill before", "kill after", "hang", "hang deaf"}[m]
}

// Kill reports whether the mode ends the program.
func (m Mode) Kill() bool { return m == KillBefore || m == KillAfter }

// Hangs reports whether the mode lets operations hang.
func (m Mode) Hangs() bool { return m == Hang || m == HangDeaf }

// These are the errors that faulty operations return.
var (
	ErrFault  = errors.New("injected fault")
	ErrKilled = errors.New("killed")
)

// Plan is one fault: at the Nth operation that goes through it, in Mode.
type Plan struct {
	N    int
	Mode Mode
	// Narrow restricts a fault that lasts until Heal to the owner whose operation was the
	// Nth: without Narrow it hits all operations of the sort.
	Narrow bool
	// Looks says that Verify and Find are operations, too.
	Looks bool
	// Beside is called when the fault surfaces, before the operation has its outcome: it
	// does what is to happen while the operation is under way. Optional.
	Beside func(what string)

	mu     sync.Mutex
	count  int
	at     string  // the operation at which the fault surfaced
	victim hold.ID // the owner of that operation
	dead   bool
	sick   string // sort of operations that fail or hang until Heal
	healed bool
	died   chan struct{}
	well   chan struct{} // closed by Heal
}

// New returns a plan. N counts from 1.
func New(n int, m Mode) *Plan {
	return &Plan{N: n, Mode: m, died: make(chan struct{}), well: make(chan struct{})}
}

// Surfaced says at which operation the fault happened, or "".
func (p *Plan) Surfaced() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

// Victim returns the owner whose operation the fault hit; "" for a commit or a Find, which
// have none.
func (p *Plan) Victim() hold.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.victim
}

// Counted says how many operations there have been until the fault surfaced, or
// until now.
func (p *Plan) Counted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// Dead returns a channel that is closed when the program has been killed. From then on its
// operations have no effect.
func (p *Plan) Dead() <-chan struct{} { return p.died }

// Context returns a copy of ctx that ends when the program has been killed.
func (p *Plan) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-p.died:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// IsDead reports whether the program has been killed.
func (p *Plan) IsDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// Heal ends the plan: from now on no operation fails or hangs, also none that is under way,
// and the program does not die. A program that is dead stays dead.
func (p *Plan) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.healed {
		close(p.well)
	}
	p.healed = true
}

// Kill ends the program now, unless the plan has ended. It reports whether the
// program is dead.
func (p *Plan) Kill() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.healed && !p.dead {
		p.dead = true
		close(p.died)
	}
	return p.dead
}

// Around runs one operation of a sort under the plan.
func (p *Plan) Around(sort, what string, f func() error) error {
	return p.Under(context.Background(), sort, what, nil, f)
}

// Under is Around for an operation that has a context, and works on holds of owners.
func (p *Plan) Under(ctx context.Context, sort, what string, owners []hold.ID, f func() error) error {
	mode, surfaces := p.next(sort, what, owners)
	if surfaces && p.Beside != nil {
		p.Beside(what)
	}
	err := fmt.Errorf("%w: %s %s", ErrFault, p.Mode, what)
	switch mode {
	case unharmed:
		return f()
	case dead:
		return ErrKilled
	case FailBefore, FailForever:
		return err
	case KillBefore:
		if p.Kill() {
			return ErrKilled
		}
		return f()
	case Hang, HangDeaf:
		if err := p.hang(ctx); err != nil {
			return err
		}
		return f()
	}
	answer := f()
	if p.isHealed() || mode == KillAfter && !p.Kill() { // while f ran
		return answer
	}
	if mode == KillAfter {
		return ErrKilled
	}
	return err
}

// These are the outcomes of an operation that is not the Nth.
const (
	unharmed Mode = -1 - iota
	dead
)

// next counts an operation, and returns what becomes of it and whether the fault surfaces
// with it.
func (p *Plan) next(sort, what string, owners []hold.ID) (m Mode, surfaces bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.dead:
		return dead, false
	case p.healed:
		return unharmed, false
	case p.sick == sort && (!p.Narrow || len(owners) == 0 || slices.Contains(owners, p.victim)):
		return p.Mode, false
	}
	if p.count++; p.count != p.N {
		return unharmed, false
	}
	p.at = what
	if len(owners) > 0 {
		p.victim = owners[0]
	}
	if p.Mode == FailForever || p.Mode.Hangs() {
		p.sick = sort
	}
	return p.Mode, true
}

// hang waits for Heal or, in mode Hang, for the end of ctx.
func (p *Plan) hang(ctx context.Context) error {
	var ear <-chan struct{}
	if p.Mode == Hang {
		ear = ctx.Done()
	}
	select {
	case <-p.well:
		return nil
	case <-p.died:
		return ErrKilled
	case <-ear:
		return context.Cause(ctx)
	}
}

func (p *Plan) isHealed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healed
}
