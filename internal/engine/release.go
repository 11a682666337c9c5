package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ledger"
)

// cutting is how long one owner's cut may take, whoever asked for it.
const cutting = 5 * time.Second

// leaving is an owner on its way out, from the cut to the forget. All of it is
// guarded by Engine.mu.
type leaving struct {
	owner   hold.Owner
	state   []holdState // of owner.Holds
	tried   bool        // to cut it: nothing is released before
	cut     bool        // unreachable
	final   bool        // nothing is left but the forget
	trouble *trouble    // of the forget
	gone    chan struct{}
	stuck   chan struct{}            // closed once something is owed, and nothing else can be tried
	without map[string]chan struct{} // by kind, of those who wait: closed once no hold of it is left
}

// holdState says how far the release of one hold is.
type holdState struct {
	stage    hold.Stage
	cuts     bool // its kind has a Cut: the owner can be reached by it
	queued   bool // at its line, or about to be
	severed  bool // or its line sees to that
	released bool
	trouble  *trouble // after a failed try
}

// Release promises that owners go. When it returns nil, that is durable and
// each of them is cut off; what they hold is given back from then on, without
// end until it is done, and Wait waits for it. Their children go with them.
// Unknown ids are left out; releasing again joins the release under way. ops
// are in the same commit, and may begin owners of ids that are releasing at
// once.
//
// An error means that the promise could not be written or that a cut failed.
// Whoever is releasing in the ledger goes all the same. The caller should say
// "try again". Who has to know which of the two it was calls Promise and Depart.
func (e *Engine) Release(ctx context.Context, ids []hold.ID, ops ...ledger.Op) error {
	all, err := e.Promise(ctx, ids, ops...)
	return errors.Join(err, e.Depart(ctx, all))
}

// Promise is the first half of Release: the commit. It returns who has to
// depart: the known ones of ids and their descendants, children first.
//
// After an error nothing of ids and ops may be taken for promised: a commit that
// was withdrawn may have had its effect, or not. Then only those are returned who
// are releasing by this promise or by an earlier one.
func (e *Engine) Promise(ctx context.Context, ids []hold.ID, ops ...ledger.Op) ([]hold.ID, error) {
	all, err := e.promise(ctx, ids, ops)
	if err != nil {
		all = e.promised(ids)
	} else {
		e.absolve(ids) // also who is forgotten by now
	}
	e.absolve(all)
	return all, err
}

// cutsAtOnce is how many owners are cut off beside each other by one Depart.
const cutsAtOnce = 16

// Depart is the second half of Release: it stops whoever takes or repairs the
// owners, cuts them off, all beside each other, and sends what they hold to its
// lines. ids are of owners that are releasing; one that is gone is left out.
//
// An error wraps ErrReachable, or says that somebody who takes an owner has not
// stopped yet, within Options.Mending: nobody waits for another owner longer. It
// takes nothing back of the promise: both are tried again without the caller.
func (e *Engine) Depart(ctx context.Context, ids []hold.ID) error {
	for _, id := range ids {
		e.interrupt(id)
	}
	if len(ids) == 1 {
		return e.leave(ctx, ids[0])
	}
	errs := make([]error, len(ids))
	var cuts sync.WaitGroup
	places := make(chan struct{}, cutsAtOnce)
	for i, id := range ids {
		places <- struct{}{}
		cuts.Go(func() {
			defer func() { <-places }()
			errs[i] = e.leave(ctx, id)
		})
	}
	cuts.Wait()
	return errors.Join(errs...)
}

// leave departs one owner. If the asker's time is up first, the engine goes on by
// itself, once, however many ask.
func (e *Engine) leave(ctx context.Context, id hold.ID) error {
	waiting, cancel := context.WithTimeout(ctx, e.Mending)
	defer cancel()
	err := e.depart(waiting, id)
	if !errors.Is(err, errImpatient) {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.followed[id] {
		e.followed[id] = true
		e.spawn(func() {
			_ = e.depart(e.ctx, id) // the promise stands, whoever waits for it
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.followed, id)
		})
	}
	return err
}

// errImpatient says that an asker's time was up before whoever was taking the
// owner had stopped.
var errImpatient = errors.New("it has not stopped yet")

// promised returns those of ids, and of their descendants, that are releasing.
func (e *Engine) promised(ids []hold.ID) []hold.ID {
	return slices.DeleteFunc(e.family(ids), e.wanted)
}

// promise commits that owners and their children are releasing, and returns
// those that are known, children first.
func (e *Engine) promise(ctx context.Context, ids []hold.ID, ops []ledger.Op) ([]hold.ID, error) {
	now := e.now()
	for {
		all := e.family(ids)
		commit := append([]ledger.Op(nil), ops...)
		for _, id := range all {
			if e.wanted(id) {
				commit = append(commit, ledger.Releasing(id, now))
			}
		}
		if len(commit) > 0 {
			err := e.Ledger.Commit(ctx, commit...)
			if errors.Is(err, ledger.ErrUnknown) {
				continue // one was forgotten in between: look again
			}
			if err != nil {
				return nil, err
			}
		}
		ops = nil
		// No child has come in between, and none can now; ops may have begun some.
		if all = e.family(ids); !slices.ContainsFunc(all, e.wanted) {
			return all, nil
		}
	}
}

// wanted reports whether an owner is known and not releasing.
func (e *Engine) wanted(id hold.ID) bool {
	o, ok := e.Ledger.Owner(id)
	return ok && o.Wanted()
}

// family returns the known ones of ids with all their descendants, children
// before parents, each once.
func (e *Engine) family(ids []hold.ID) []hold.ID {
	var all []hold.ID
	seen := map[hold.ID]bool{}
	var visit func(hold.ID)
	visit = func(id hold.ID) {
		if seen[id] {
			return
		}
		seen[id] = true
		for _, child := range e.Ledger.Children(id) {
			visit(child)
		}
		if _, ok := e.Ledger.Owner(id); ok {
			all = append(all, id)
		}
	}
	for _, id := range ids {
		visit(id)
	}
	return all
}

// depart cuts a releasing owner off, once whoever was taking it has stopped,
// and sends its holds to their lines. A second call joins the first.
func (e *Engine) depart(ctx context.Context, id hold.ID) error {
	_, leave, err := e.enter(ctx, id, false)
	if err != nil {
		return fmt.Errorf("waiting for the ADD of %s to stop: %w: %w", id, errImpatient, err)
	}
	defer leave()
	o, ok := e.Ledger.Owner(id)
	if !ok {
		return nil // released meanwhile
	}
	e.mu.Lock()
	l := e.leaving[id]
	first := l == nil
	if first {
		l = e.newLeaving(e.learned(o))
		e.leaving[id] = l
	}
	cut := l.cut
	e.mu.Unlock()
	if first {
		e.event(api.EventReleasing, o, "", nil)
	}
	if !cut {
		err = e.cutOff(ctx, e.unreleased(l))
	}
	e.mu.Lock()
	l.tried, l.cut = true, l.cut || err == nil
	done := e.advance(l)
	e.mu.Unlock()
	if done {
		e.background(func() { e.forget([]*leaving{l}) })
	}
	return err
}

func (e *Engine) newLeaving(o hold.Owner) *leaving {
	l := &leaving{owner: o, state: make([]holdState, len(o.Holds)), gone: make(chan struct{}), stuck: make(chan struct{})}
	for i, h := range o.Holds {
		l.state[i].stage = hold.Use // an unknown kind keeps its owner's names
		if k, err := e.kind(h); err == nil {
			l.state[i].stage, l.state[i].cuts = k.Stage, k.Cut != nil
		}
	}
	return l
}

// ErrReachable says that an owner could not be cut off. Its promise stands.
var ErrReachable = errors.New("it can still be reached")

// cutOff makes the owner of holds unreachable. It does not stop for an asker who
// left.
func (e *Engine) cutOff(ctx context.Context, holds []hold.Hold) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutting)
	defer cancel()
	var errs []error
	for _, h := range holds {
		k, err := e.kind(h)
		if err != nil || k.Cut == nil {
			continue
		}
		if err := e.observed(k.Name(), "cut", 1, func() error { return k.Cut(ctx, h) }); err != nil {
			errs = append(errs, fmt.Errorf("cutting off %s: %w: %w", h.Spec, ErrReachable, err))
		}
	}
	return errors.Join(errs...)
}

// unreleased returns the holds of an owner that are not given back yet.
func (e *Engine) unreleased(l *leaving) []hold.Hold {
	e.mu.Lock()
	defer e.mu.Unlock()
	var left []hold.Hold
	for i, h := range l.owner.Holds {
		if !l.state[i].released {
			left = append(left, h)
		}
	}
	return left
}

// advance sends what can be released now to its line: what others stand on, once
// the owner's children are gone. It reports whether the owner has nothing left and
// can be forgotten, once. Engine.mu is held.
func (e *Engine) advance(l *leaving) bool {
	if !l.tried {
		return false
	}
	reachable, children := l.reachable(), len(e.Ledger.Children(l.owner.ID)) > 0
	for i, s := range l.state {
		switch {
		case s.stage == hold.Reserve, s.stage == hold.Use && children:
		case s.cuts || !reachable:
			e.send(l, i)
		}
	}
	if l.left(hold.Use) > 0 || children {
		return false
	}
	if i := l.lastReserve(); i >= 0 {
		e.send(l, i)
		return false
	}
	if l.left(hold.Tell) == 0 {
		forget := !l.final
		l.final = true
		return forget
	}
	if l.untold() && len(l.owner.Names) > 0 {
		l.owner.Names = nil
		e.spawn(func() { e.freeNames(l.owner.ID) })
	}
	return false
}

// reachable reports whether a cut has failed, and what it was about is still
// there. Until it is not, what else the owner has might come back as soon as it
// is released: its traffic leaves new traces.
func (l *leaving) reachable() bool {
	return !l.cut && slices.ContainsFunc(l.state, func(s holdState) bool { return s.cuts && !s.released })
}

// left counts the holds of a stage that are not released.
func (l *leaving) left(s hold.Stage) int {
	n := 0
	for _, h := range l.state {
		if h.stage == s && !h.released {
			n++
		}
	}
	return n
}

// lastReserve returns the index of the reserving hold that is next, or -1.
func (l *leaving) lastReserve() int {
	for i := len(l.state) - 1; i >= 0; i-- {
		if s := l.state[i]; s.stage == hold.Reserve && !s.released {
			return i
		}
	}
	return -1
}

// untold reports whether all that is left has been tried, and failed.
func (l *leaving) untold() bool {
	for _, s := range l.state {
		if !s.released && s.trouble == nil {
			return false
		}
	}
	return true
}
