package engine

import (
	"context"
	"errors"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// Past is how the release of an owner went, in this run of the program.
type Past struct {
	// Asker says who asked for the owner's release, in the words of AskedBy or one of the constants
	// below. "": an earlier run of the program promised the release.
	Asker   string
	Earlier hold.Earlier
	Failed  error        // why the owner could not be taken; nil: it was taken, or an earlier run knew
	Cut     time.Time    // when the owner was cut off; zero: its cut has not succeeded
	CutErr  error        // why a cut failed
	Holds   []PastHold   // of the owner, in their order
	Forget  *PastTrouble // the trouble with the commit that forgets the owner; nil: there was none
}

// PastHold is how the release of one hold went.
type PastHold struct {
	Hold     hold.Hold
	Released time.Time    // zero: not yet
	Trouble  *PastTrouble // nil: no try has failed
}

// PastTrouble sums up tries that failed.
type PastTrouble struct {
	Since time.Time
	Tries int
	Err   error // of the last try that failed
}

// Askers of releases that the engine begins by itself.
const (
	AskerFailure = "failed" // the owner could not be taken
	AskerHome    = "gone"   // the owner's home has ended (Options.Homeless, hold.ErrHomeless)
)

// asked is what led to an owner's release.
type asked struct {
	by      string
	earlier hold.Earlier
	failed  error
}

type (
	askerKey   struct{}
	earlierKey struct{}
)

// AskedBy returns a context for promises of releases that `who` has asked for.
func AskedBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, askerKey{}, who)
}

// AskedEarlier returns a context for promises of releases that somebody had asked for before this
// program heard of it. `of` returns what had happened to an owner by then.
func AskedEarlier(ctx context.Context, of func(hold.ID) hold.Earlier) context.Context {
	return context.WithValue(ctx, earlierKey{}, of)
}

// noteAsker notes who asked for the release of owners that a promise with this context has just
// made releasing. Later promises for the same owners change nothing.
func (e *Engine) noteAsker(ctx context.Context, ids []hold.ID) {
	by, _ := ctx.Value(askerKey{}).(string)
	if by == "" {
		return
	}
	for _, id := range ids {
		earlier := earlierOf(ctx, id)
		e.noteAsked([]hold.ID{id}, func(a *asked) { a.by, a.earlier = by, earlier })
	}
}

// earlierOf returns what had happened to an owner before a promise with this context.
func earlierOf(ctx context.Context, id hold.ID) hold.Earlier {
	if of, ok := ctx.Value(earlierKey{}).(func(hold.ID) hold.Earlier); ok {
		return of(id)
	}
	return hold.Earlier{}
}

// noteAsked changes what is known of how owners' releases came about. It leaves out owners
// that are forgotten: nobody would take them off Engine.asked again (ended).
func (e *Engine) noteAsked(ids []hold.ID, change func(*asked)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		if _, known := e.Ledger.Owner(id); known {
			a := e.asked[id]
			change(&a)
			e.asked[id] = a
		}
	}
}

// noteFailed notes why an owner could not be taken.
func (e *Engine) noteFailed(id hold.ID, err error) {
	if !errors.Is(err, ErrOvertaken) { // after ErrOvertaken, the Take did not fail: a release took the owner away
		e.noteAsked([]hold.ID{id}, func(a *asked) { a.failed = err })
	}
}

// Past returns how the release of an owner has gone so far; false: the owner is not being
// released.
func (e *Engine) Past(id hold.ID) (Past, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.leaving[id]; l != nil {
		return *e.past(l), true
	}
	return Past{}, false
}

// past sums up a release. Engine.mu is held.
func (e *Engine) past(l *leaving) *Past {
	a := e.asked[l.owner.ID]
	p := &Past{
		Asker: a.by, Earlier: a.earlier, Failed: a.failed, Cut: l.cutAt, CutErr: l.cutErr,
		Holds: make([]PastHold, len(l.state)), Forget: l.trouble.past(),
	}
	if a.by == "" && l.owner.Earlier != nil { // an earlier run promised the release, and wrote this down
		p.Earlier = *l.owner.Earlier
	}
	for i, s := range l.state {
		p.Holds[i] = PastHold{l.owner.Holds[i], s.at, s.past}
		if s.trouble != nil {
			p.Holds[i].Trouble = s.trouble.past()
		}
	}
	return p
}

// past sums up a trouble; nil: there was none.
func (t *trouble) past() *PastTrouble {
	if t == nil {
		return nil
	}
	return &PastTrouble{t.since, t.tries, t.err}
}
