// Package table is the kind of an agent's nftables table, whose rules cut dying pods off,
// keep pods from sending in another's name and from opening too many connections, and
// masquerade traffic that leaves the pools. An agent has one such hold. Other programs may
// delete the table (`nft flush ruleset`). So Run watches the table and puts it back, and Intact says
// whether the table cuts links off at the moment.
package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/stamp"
)

// KindName is the name of the kind. Ledgers, metrics and events of all versions have this name, from
// the time when the kind did nothing but masquerade.
const KindName = "egress"

// Spec is an agent's table. The agent's configuration decides what is in the table, and may change
// while the hold stays.
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
	Ruleset nft.Ruleset // Keeper uses its Instance for ever, and replaces its Owner by the hold's

	// Differs, if not nil, is called as soon as Keeper sees that the table is not what it
	// should be, before it puts the table right. Differs has to cut off in another way the links that
	// the table cuts off. Intact is already false. Differs must not block for long, because nobody mends
	// the table meanwhile, and must call nothing of Keeper but Intact.
	Differs func()
	// Keeper calls Lacks, if not nil, with the parts of the table that the kernel does not support (see
	// nft.Parts), whenever these parts change. It must neither block nor call anything of Keeper but
	// Intact, like Differs.
	Lacks func(nft.Parts)
	// A former agent, or somebody else, may have left host ports in the table under an owner's
	// name. Kept, if not nil, returns those of these host ports that stay.
	Kept func(hold.ID, []nft.Mapping) []nft.Mapping
	// Astray, if not nil, is called with host ports that Keeper finds in the table and that no owner has: somebody has
	// brought back an older table, and flows may have begun there. Astray must neither block nor call anything of Keeper but
	// Intact.
	Astray func([]nft.Mapping)
}

// Keeper takes and watches the table.
type Keeper struct {
	tables  tables
	name    string // the instance
	differs func()
	lacks   func(nft.Parts)

	// The table is intact if Run watches it and no transaction has touched it after the generation in
	// which Keeper last saw the table to be right. sound is that generation, and touched is the
	// generation of the last transaction that touched the table; 0: there is none.
	watching       atomic.Bool
	sound, touched atomic.Uint32
	gone           atomic.Bool // the last transaction that touched the table deleted it

	// noting says that nobody but Keeper has touched the table since MarkStrays, as far as Run has heard.
	noting atomic.Bool

	mu   sync.Mutex // held while Keeper compares or changes the table
	want nft.Ruleset
	held hold.ID   // the owner that has the table; empty: nobody has it, and Run leaves it alone
	told nft.Parts // the parts with which Keeper last called lacks

	kept   func(hold.ID, []nft.Mapping) []nft.Mapping
	astray func([]nft.Mapping)
	// found are the host ports that astray was last called with. Until Keeper has written the table, flows can begin there.
	found []nft.Mapping
	// ports are the host ports that should be in the table: those that learn kept, and what Map and
	// Unmap changed since; nil: Keeper has not read the table yet.
	ports *hostPorts
	// unsure says that the kernel's table may differ from ports: since Keeper last saw the table to be
	// right, the kernel has left open whether it did what Map or Unmap asked for.
	unsure bool
	lacked nft.Parts // which parts the kernel lacked when Keeper last saw the table to be right
}

// tables is what Keeper uses of nft.Tables, so that tests can replace it.
type tables interface {
	Replace(nft.Ruleset) error
	Adjust(was, now nft.Ruleset) (bool, error)
	Change(was, now nft.Ruleset) error
	Complete(nft.Ruleset) error
	Verify(nft.Ruleset) (nft.Generation, error)
	Generation() (nft.Generation, error)
	Delete(instance string) error
	Holder(instance string) (owner string, there bool, err error)
	Lacks() nft.Parts
	Map(instance string, ports []nft.Port) error
	Unmap(instance string, ports []nft.Port) error
	Close(instance string, ports []nft.Port) error
	Mapped(instance string) ([]nft.Port, error)
	Others(instance string) (map[string][]nft.Port, error)
	Strays(instance string, addrs []netip.Addr) (found []netip.Addr, whole bool, err error)
	Noted(instance string) ([]netip.Addr, error)
	ClearStrays(instance string, addrs []netip.Addr) error
	MarkStrays(instance string) error
	Watch(instance string) (*nft.Watch, error)
}

// New returns an agent's table.
func New(o Options) *Keeper {
	k := &Keeper{tables: o.Tables, name: o.Ruleset.Instance, want: o.Ruleset, differs: o.Differs, lacks: o.Lacks, kept: o.Kept, astray: o.Astray}
	if k.kept == nil {
		k.kept = func(_ hold.ID, left []nft.Mapping) []nft.Mapping { return left }
	}
	if k.astray == nil {
		k.astray = func([]nft.Mapping) {}
	}
	if k.differs == nil {
		k.differs = func() {}
	}
	if k.lacks == nil {
		k.lacks = func(nft.Parts) {}
	}
	return k
}

// Kind returns the kind, for an agent's list.
func (k *Keeper) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return &Spec{} },
		Acquire: k.acquire,
		Verify:  hold.VerifyEach(k.verify),
		Release: hold.Each(k.release),
		Find:    k.find,
	}
}

// SetRuleset changes what the table should be, and writes it if an owner has the table.
// After an error the next sweep writes the table. The host ports stay; SetRuleset does not use r.Ports.
func (k *Keeper) SetRuleset(r nft.Ruleset) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, intact := k.want, k.Intact() && !k.unsure
	k.want = r
	if k.held == "" {
		k.sound.Store(0)
		return nil
	}
	if err := k.learn(); err != nil {
		k.sound.Store(0)
		return err
	}
	now := k.wanted(k.held, r.Instance)
	was.Owner, was.Ports = now.Owner, now.Ports
	if intact {
		if adjusted, err := k.tables.Adjust(was, now); adjusted && err == nil {
			return nil // the next sweep compares
		}
	}
	k.sound.Store(0)
	if err := k.tables.Change(was, now); err != nil {
		return err
	}
	return k.wrote(now)
}

// Retry tries to complete the table if the kernel did not support all of it: somebody may have loaded a
// module since. Each sweep calls Retry.
func (k *Keeper) Retry() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	lacks := k.tables.Lacks()
	if k.held == "" || lacks == 0 {
		return nil
	}
	if err := k.learn(); err != nil {
		return err
	}
	want := k.wanted(k.held, k.want.Instance)
	if err := k.tables.Complete(want); err != nil || k.tables.Lacks() == lacks {
		return err
	}
	return k.wrote(want)
}

// Lacks returns the parts of the table that the kernel does not support.
func (k *Keeper) Lacks() nft.Parts { return k.tables.Lacks() }

// Intact reports whether the table cuts off links in the dying groups. It does not ask the
// kernel. It is false from the moment that Run hears of a change until Keeper sees that the table is
// right again, and whenever Run does not run.
func (k *Keeper) Intact() bool {
	touched := k.touched.Load() // read first, because heard writes touched after sound
	sound := k.sound.Load()
	return k.watching.Load() && sound != 0 &&
		(touched == 0 || !nft.Generation(sound).Before(nft.Generation(touched)))
}

// acquire writes the table unless it is there. It also replaces a table of this instance that has
// no owner, because a former owner left it. There is only one such owner at
// a time, because the owner has a name that the ledger gives only once.
func (k *Keeper) acquire(_ context.Context, h hold.Hold) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held != "" && k.held != h.Owner {
		return fmt.Errorf("acquiring %s for %s: %w: owner %s has it", h.Spec, h.Owner, hold.ErrForeign, k.held)
	}
	if err := k.learn(); err != nil {
		return fmt.Errorf("acquiring %s: %w", h.Spec, err)
	}
	want := k.wanted(h.Owner, h.Spec.(*Spec).Instance)
	if k.compare(want) != nil {
		if err := k.write(want); err != nil {
			return fmt.Errorf("acquiring %s: %w", h.Spec, err)
		}
	}
	k.held = h.Owner
	return nil
}

// verify compares the table with what acquire writes. If the table's rules name another
// owner, verify returns hold.ErrGone and not hold.ErrChanged.
func (k *Keeper) verify(_ context.Context, h hold.Hold) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held != "" && k.held != h.Owner {
		return fmt.Errorf("%s of %s is %w: owner %s has it", h.Spec, h.Owner, hold.ErrGone, k.held)
	}
	if err := k.learn(); err != nil {
		return err
	}
	instance := h.Spec.(*Spec).Instance
	if k.held == h.Owner && instance == k.want.Instance && k.still() {
		return nil
	}
	err := k.compare(k.wanted(h.Owner, instance))
	if err == nil {
		k.held = h.Owner // after a restart
	}
	if errors.Is(err, hold.ErrChanged) {
		if holder, _, herr := k.tables.Holder(instance); herr == nil && holder != "" && holder != string(h.Owner) {
			return fmt.Errorf("%s of %s is %w: owner %s has it now", h.Spec, h.Owner, hold.ErrGone, holder)
		}
	}
	return err
}

// release deletes the table, unless its rules name another owner.
func (k *Keeper) release(_ context.Context, h hold.Hold) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == h.Owner {
		k.held = "" // otherwise Run would put the table back
	}
	instance := h.Spec.(*Spec).Instance
	holder, there, err := k.tables.Holder(instance)
	if err != nil {
		return fmt.Errorf("releasing %s: %w", h.Spec, err)
	}
	if !there || holder != "" && holder != string(h.Owner) {
		return nil
	}
	k.sound.Store(0)
	if err := k.tables.Delete(instance); err != nil {
		return fmt.Errorf("releasing %s: %w", h.Spec, err)
	}
	k.ports = newHostPorts() // the kernel has deleted the ports with the table
	return nil
}

// find returns the table of the agent's instance, if it is there.
func (k *Keeper) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	spec := &Spec{Instance: k.want.Instance}
	holder, there, err := k.tables.Holder(spec.Instance)
	if err != nil {
		return nil, fmt.Errorf("looking for %s: %w", spec, err)
	}
	if !there {
		return nil, nil
	}
	holder = cmp.Or(holder, string(k.held)) // somebody has changed the rules, so that they do not name one owner
	return []hold.Hold{{Owner: hold.ID(holder), Spec: spec}}, nil
}

// wanted returns the ruleset for an owner and an instance.
func (k *Keeper) wanted(owner hold.ID, instance string) nft.Ruleset {
	r := k.want
	r.Owner, r.Instance, r.Ports = string(owner), instance, k.allPorts()
	return r
}

// still reports whether nothing in nftables has changed since the table, with the host ports of all
// pods, was last seen to be right. still costs one question to the kernel, whereas compare reads the
// whole table, and the table has an element for each host port of the node's pods. The caller holds
// k.mu.
func (k *Keeper) still() bool {
	sound := k.sound.Load()
	if sound == 0 || k.unsure || k.ports == nil || k.tables.Lacks() != k.lacked {
		return false
	}
	now, err := k.tables.Generation()
	return err == nil && uint32(now) == sound
}

// compare compares the table with r. It returns nil, hold.ErrGone, hold.ErrChanged, or the
// reason why it could not read the table. If the table differs it calls differs. The caller
// holds k.mu.
func (k *Keeper) compare(r nft.Ruleset) error {
	at, err := k.tables.Verify(r)
	switch {
	case err == nil:
		k.sound.Store(uint32(at))
		k.unsure, k.lacked = false, k.tables.Lacks()
		return nil
	case errors.Is(err, nft.ErrGone):
		err = kernel.As(hold.ErrGone, err)
	case errors.Is(err, nft.ErrChanged):
		err = kernel.As(hold.ErrChanged, err)
	}
	k.sound.Store(0)
	if errors.Is(err, hold.ErrGone) || errors.Is(err, hold.ErrChanged) {
		k.noting.Store(false)
		k.differs()
		if there, err := k.read(); err == nil {
			k.sayAstray(there)
		}
	}
	return err
}

// write replaces the table by r and compares the result. The caller holds k.mu.
func (k *Keeper) write(r nft.Ruleset) error {
	if err := k.tables.Replace(r); err != nil {
		return err
	}
	if len(k.found) > 0 {
		k.astray(k.found)
		k.found = nil
	}
	return k.wrote(r)
}

// wrote calls lacks if the parts that the kernel lacks have changed, and compares the table
// with r, which Keeper has just written. The caller holds k.mu.
func (k *Keeper) wrote(r nft.Ruleset) error {
	if lacks := k.tables.Lacks(); lacks != k.told {
		k.told = lacks
		k.lacks(lacks)
	}
	return k.compare(r)
}
