// Package egress is the kind of an agent's nftables table: the rules that cut
// dying pods off, those that keep pods to what is theirs, and masquerade for what
// leaves the pools. An agent has one
// such hold. Others may flush it (`nft flush ruleset`), so that Run watches it
// and puts it back, and Intact says whether the cut can be relied on.
package egress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
)

// KindName is the name of the kind.
const KindName = "egress"

// Spec is an agent's table. What is in it follows from the agent's
// configuration, which may change while the hold stays.
type Spec struct {
	Instance string `json:"instance"` // of the agent
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

// String names the table as nft does.
func (s *Spec) String() string { return "table inet " + stamp.Table(s.Instance) }

// Options are what New needs.
type Options struct {
	Tables  *nft.Tables
	Ruleset nft.Ruleset // its Instance is the agent's for good; Owner is overwritten by that of the hold

	// Differs, if any, is called as soon as the table is seen not to be what it
	// should be, and before it is put right: what relies on its cut has to be
	// cut off otherwise now. Intact is false by then. It must neither block,
	// since nobody mends the table meanwhile, nor call anything here but Intact.
	Differs func()
	// Lacks, if any, is told of what the kernel cannot have of the table (see
	// nft.Parts), whenever that changes. Differs's rules hold for it.
	Lacks func(nft.Parts)
}

// Egress takes and watches the table.
type Egress struct {
	tables  tables
	differs func()
	lacks   func(nft.Parts)

	// The table is intact as long as no watched transaction has touched it
	// after the generation in which it was last seen to be right. Both are 0
	// if there is none.
	watching       atomic.Bool
	sound, touched atomic.Uint32

	mu   sync.Mutex // what changes the table, one at a time
	want nft.Ruleset
	held hold.ID   // who has the table; empty: nobody, and Run leaves it alone
	told nft.Parts // the last that lacks was told
}

// tables is nft.Tables.
type tables interface {
	Replace(nft.Ruleset) error
	Change(was, now nft.Ruleset) error
	Complete(nft.Ruleset) error
	Verify(nft.Ruleset) (nft.Generation, error)
	Delete(instance string) error
	Holder(instance string) (owner string, there bool, err error)
	Lacks() nft.Parts
	Watch(instance string) (*nft.Watch, error)
}

// New returns the kind's object.
func New(o Options) *Egress {
	e := &Egress{tables: o.Tables, want: o.Ruleset, differs: o.Differs, lacks: o.Lacks}
	if e.differs == nil {
		e.differs = func() {}
	}
	if e.lacks == nil {
		e.lacks = func(nft.Parts) {}
	}
	return e
}

// Kind returns the kind, for an agent's list.
func (e *Egress) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return &Spec{} },
		Acquire: e.acquire,
		Verify:  hold.VerifyEach(e.verify),
		Release: hold.Each(e.release),
		Find:    e.find,
	}
}

// SetRuleset changes what the table should be, and writes it if somebody has
// it. After an error it is written by the next sweep.
func (e *Egress) SetRuleset(r nft.Ruleset) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.wanted(e.held, e.want.Instance)
	e.want = r
	e.sound.Store(0)
	if e.held == "" {
		return nil
	}
	now := e.wanted(e.held, r.Instance)
	if err := e.tables.Change(was, now); err != nil {
		return err
	}
	return e.wrote(now)
}

// Retry completes the table if the kernel could not have all of it: a module may be
// there by now. It is for every sweep.
func (e *Egress) Retry() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	lacks := e.tables.Lacks()
	if e.held == "" || lacks == 0 {
		return nil
	}
	want := e.wanted(e.held, e.want.Instance)
	if err := e.tables.Complete(want); err != nil || e.tables.Lacks() == lacks {
		return err
	}
	return e.wrote(want)
}

// Lacks returns what the kernel cannot have of the table.
func (e *Egress) Lacks() nft.Parts { return e.tables.Lacks() }

// Intact reports whether a link in the dying range is cut off by the table,
// without asking the kernel: false from the moment that Run hears of a change
// until the table is seen to be right again, and whenever Run does not run.
func (e *Egress) Intact() bool {
	sound, touched := e.sound.Load(), e.touched.Load()
	return e.watching.Load() && sound != 0 &&
		(touched == 0 || !nft.Generation(sound).Before(nft.Generation(touched)))
}

// acquire writes the table unless it is there. A table of this instance that
// nobody in this agent has is a former owner's, and is replaced; the owner's
// name sees to it that there is one at a time.
func (e *Egress) acquire(_ context.Context, h hold.Hold) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held != "" && e.held != h.Owner {
		return fmt.Errorf("acquiring %s for %s: %w: %s", h.Spec, h.Owner, hold.ErrForeign, e.held)
	}
	want := e.wanted(h.Owner, h.Spec.(*Spec).Instance)
	if e.compare(want) != nil {
		if err := e.write(want); err != nil {
			return fmt.Errorf("acquiring %s: %w", h.Spec, err)
		}
	}
	e.held = h.Owner
	return nil
}

// verify compares the table with what acquire writes. One whose rules name
// another owner is not this one's, changed: this one's is gone.
func (e *Egress) verify(_ context.Context, h hold.Hold) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held != "" && e.held != h.Owner {
		return fmt.Errorf("%s of %s is %w: %s has it", h.Spec, h.Owner, hold.ErrGone, e.held)
	}
	instance := h.Spec.(*Spec).Instance
	err := e.compare(e.wanted(h.Owner, instance))
	if err == nil {
		e.held = h.Owner // after a restart
	}
	if errors.Is(err, hold.ErrChanged) {
		if holder, _, herr := e.tables.Holder(instance); herr == nil && holder != "" && holder != string(h.Owner) {
			return fmt.Errorf("%s of %s is %w: it is of %s now", h.Spec, h.Owner, hold.ErrGone, holder)
		}
	}
	return err
}

// release deletes the table, unless its rules name another owner.
func (e *Egress) release(_ context.Context, h hold.Hold) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held == h.Owner {
		e.held = "" // or Run would put it back
	}
	instance := h.Spec.(*Spec).Instance
	holder, there, err := e.tables.Holder(instance)
	if err != nil {
		return fmt.Errorf("releasing %s: %w", h.Spec, err)
	}
	if !there || holder != "" && holder != string(h.Owner) {
		return nil
	}
	e.sound.Store(0)
	if err := e.tables.Delete(instance); err != nil {
		return fmt.Errorf("releasing %s: %w", h.Spec, err)
	}
	return nil
}

// find returns the table of the agent's instance, if it is there.
func (e *Egress) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	spec := &Spec{Instance: e.want.Instance}
	holder, there, err := e.tables.Holder(spec.Instance)
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", spec, err)
	}
	if !there {
		return nil, nil
	}
	if holder == "" {
		holder = string(e.held) // somebody has touched its rules
	}
	return []hold.Hold{{Owner: hold.ID(holder), Spec: spec}}, nil
}

// wanted is the ruleset for an owner and an instance.
func (e *Egress) wanted(owner hold.ID, instance string) nft.Ruleset {
	r := e.want
	r.Owner, r.Instance = string(owner), instance
	return r
}

// compare compares the table with r: nil, hold.ErrGone, hold.ErrChanged, or why
// it could not be read. e.mu is held. Of one that differs it tells at once.
func (e *Egress) compare(r nft.Ruleset) error {
	at, err := e.tables.Verify(r)
	switch {
	case err == nil:
		e.sound.Store(uint32(at))
		return nil
	case errors.Is(err, nft.ErrGone):
		err = kernel.As(hold.ErrGone, err)
	case errors.Is(err, nft.ErrChanged):
		err = kernel.As(hold.ErrChanged, err)
	}
	e.sound.Store(0)
	if errors.Is(err, hold.ErrGone) || errors.Is(err, hold.ErrChanged) {
		e.differs()
	}
	return err
}

// write replaces the table by r and looks at what came of it. e.mu is held.
func (e *Egress) write(r nft.Ruleset) error {
	if err := e.tables.Replace(r); err != nil {
		return err
	}
	return e.wrote(r)
}

// wrote tells what the kernel lacks, if that is new, and looks at the table of r that
// was written. e.mu is held.
func (e *Egress) wrote(r nft.Ruleset) error {
	if lacks := e.tables.Lacks(); lacks != e.told {
		e.told = lacks
		e.lacks(lacks)
	}
	return e.compare(r)
}
