// Package egress is the kind of an agent's nftables table, whose rules cut dying pods off,
// keep pods from sending in another's name and from opening too many connections, and
// masquerade traffic that leaves the pools. An agent has one such hold. Other programs may
// delete the table (`nft flush ruleset`). So Run watches it and puts it back, and Intact
// says whether its cut works at the moment.
package egress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/stamp"
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

// Options of New.
type Options struct {
	Tables  *nft.Tables
	Ruleset nft.Ruleset // Egress uses its Instance for ever, and replaces its Owner by the hold's

	// Differs, if not nil, is called as soon as Egress sees that the table is not what it
	// should be, before it puts the table right. Links that are cut off by the table have
	// to be cut off in another way now. Intact is already false. Differs must not block,
	// because nobody mends the table meanwhile, and must call nothing of Egress but Intact.
	Differs func()
	// Lacks, if not nil, is told which parts of the table the kernel does not support (see
	// nft.Parts), whenever that changes. It must neither block nor call anything of Egress
	// but Intact, like Differs.
	Lacks func(nft.Parts)
}

// Egress takes and watches the table.
type Egress struct {
	tables  tables
	differs func()
	lacks   func(nft.Parts)

	// The table is intact if Run watches it and no transaction has touched it after the
	// generation in which it was last seen to be right. sound is that generation, touched
	// that of the last transaction that touched the table; 0: there is none.
	watching       atomic.Bool
	sound, touched atomic.Uint32

	mu   sync.Mutex // held while the table is compared or changed
	want nft.Ruleset
	held hold.ID   // the owner that has the table; empty: nobody, and Run leaves it alone
	told nft.Parts // what lacks was told last
}

// tables is what Egress uses of nft.Tables, so that tests can replace it.
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

// New returns an agent's table.
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

// SetRuleset changes what the table should be, and writes it if an owner has the table.
// After an error the next sweep writes it.
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

// Retry tries to complete the table if the kernel did not support all of it: a module may
// have been loaded since. Each sweep calls it.
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

// Lacks returns the parts of the table that the kernel does not support.
func (e *Egress) Lacks() nft.Parts { return e.tables.Lacks() }

// Intact reports whether the table cuts off links in the dying groups. It does not ask the
// kernel. It is false from the moment that Run hears of a change until the table is seen to
// be right again, and whenever Run does not run.
func (e *Egress) Intact() bool {
	sound, touched := e.sound.Load(), e.touched.Load()
	return e.watching.Load() && sound != 0 &&
		(touched == 0 || !nft.Generation(sound).Before(nft.Generation(touched)))
}

// acquire writes the table unless it is there. It replaces a table of this instance that no
// owner of this agent has, because a former owner left it. There is only one such owner at
// a time, because the owner has a name that the ledger gives only once.
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

// verify compares the table with what acquire writes. If the table's rules name another
// owner, the hold is not changed but gone.
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
		e.held = "" // else Run would put the table back
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
		holder = string(e.held) // somebody has changed the rules, so that they do not name one owner
	}
	return []hold.Hold{{Owner: hold.ID(holder), Spec: spec}}, nil
}

// wanted returns the ruleset for an owner and an instance.
func (e *Egress) wanted(owner hold.ID, instance string) nft.Ruleset {
	r := e.want
	r.Owner, r.Instance = string(owner), instance
	return r
}

// compare compares the table with r. It returns nil, hold.ErrGone, hold.ErrChanged, or the
// reason why it could not read the table. If the table differs it calls differs. The caller
// holds e.mu.
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

// write replaces the table by r and compares the result. The caller holds e.mu.
func (e *Egress) write(r nft.Ruleset) error {
	if err := e.tables.Replace(r); err != nil {
		return err
	}
	return e.wrote(r)
}

// wrote calls lacks if the parts that the kernel lacks have changed, and compares the table
// with r, which was just written. The caller holds e.mu.
func (e *Egress) wrote(r nft.Ruleset) error {
	if lacks := e.tables.Lacks(); lacks != e.told {
		e.told = lacks
		e.lacks(lacks)
	}
	return e.compare(r)
}
