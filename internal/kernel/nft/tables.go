package nft

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/berth-net/berth/internal/stamp"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// Tables is the nftables of one network namespace. Its methods may be called at
// once.
type Tables struct {
	at     *ns.Netns
	commit func(table) error // puts a table in the place of that name, in one transaction
	lacks  atomic.Uint32     // the Parts that the last table was written without
	conns  conns
}

// Open returns the nftables of the namespace, which must stay open. Nothing is
// read or changed yet.
func Open(at *ns.Netns) *Tables {
	t := &Tables{at: at}
	t.commit, t.conns.tables = t.replace, t
	return t
}

// A transaction is one message to the kernel, and as many bytes as the send
// buffer has (212,992 without privilege: some 4,000 CIDRs). What is longer is
// refused with EMSGSIZE, and nothing of it is done.
const sendBuffer = 16 << 20

// A netlink attribute ends at 64 KiB; an element of an IPv6 set takes 36 bytes.
const elementsPerMessage = 1024

// Replace writes the ruleset's table, whatever stands there, in one
// transaction: no packet meets half of it, and it is cut off without a gap. The
// whole table is tried first, each time; what this kernel cannot have of it is
// left out, as little as possible, and is what Lacks tells.
//
//	add table inet NAME; delete table inet NAME; table inet NAME { ... }
func (t *Tables) Replace(r Ruleset) error { return t.write(r, allParts+1) }

// Complete writes the ruleset's table again if this kernel can have more of it than
// when it was written last; else it stays, with all that packets have put into it.
func (t *Tables) Complete(r Ruleset) error { return t.write(r, t.Lacks()) }

// Change writes the ruleset's table in the place of another ruleset's, was, and leaves what
// packets have put into sets where that counts the same in both: no pod begins anew with
// its share because a pool has come. Where was is not what stands, or not all of r can be
// had so, it is Replace.
func (t *Tables) Change(was, r Ruleset) error {
	if t.Lacks() == 0 && was.Instance == r.Instance && was.Live == r.Live && was.Connections == r.Connections {
		if _, err := t.Verify(was); err == nil && t.amend(was.table(0), r.table(0)) == nil {
			return nil
		}
	}
	return t.Replace(r)
}

// amend makes a table of another, in one transaction.
func (t *Tables) amend(was, want table) error {
	err := t.transact(func(r *request) {
		for _, c := range was.chains {
			r.deleteRules(was.name, c)
			if !slices.ContainsFunc(want.chains, c.like) {
				r.deleteChain(was.name, c)
			}
		}
		for _, s := range was.sets {
			if !s.dynamic || !slices.ContainsFunc(want.sets, s.like) {
				r.deleteSet(was.name, s)
			}
		}
		for i, s := range want.sets {
			if !s.dynamic || !slices.ContainsFunc(was.sets, s.like) {
				r.addSet(want.name, uint32(i+1), s)
			}
		}
		for _, c := range want.chains {
			if !slices.ContainsFunc(was.chains, c.like) {
				r.addChain(want.name, c)
			}
			r.addRules(want.name, c)
		}
	})
	if err != nil {
		return fmt.Errorf("changing nftables table %s: %w", want.name, kernel.Classify(err))
	}
	return nil
}

// write is Replace, but only with less left out than a last resort.
func (t *Tables) write(r Ruleset, last Parts) error {
	var refused error
	for _, without := range attempts {
		if without == last {
			return nil
		}
		if without&^r.parts() != 0 {
			continue // the same again
		}
		err := t.commit(r.table(without))
		if err == nil {
			t.lacks.Store(uint32(without))
			return nil
		}
		if refused = cmp.Or(refused, err); !cannot(err) {
			return err
		}
	}
	return refused
}

// Lacks returns what the last table was written without.
func (t *Tables) Lacks() Parts { return Parts(t.lacks.Load()) }

// replace writes a table as it is.
func (t *Tables) replace(want table) error {
	err := t.transact(func(r *request) {
		r.addTable(want.name) // or deleting it could fail
		r.deleteTable(want.name)
		want.add(r)
	})
	if err != nil {
		return fmt.Errorf("replacing nftables table %s: %w", want.name, kernel.Classify(err))
	}
	return nil
}

// transact does what is asked for, or nothing of it.
func (t *Tables) transact(ask func(*request)) error {
	c, err := t.conns.takeWriter()
	if err != nil {
		return err
	}
	var r request
	ask(&r)
	if err := r.commit(c.Conn); err != nil {
		t.conns.dropWriter(c)
		return err
	}
	t.conns.giveWriter(c)
	return nil
}

// Delete removes the instance's table. If it is not there, that is success.
//
//	delete table inet NAME
func (t *Tables) Delete(instance string) error {
	err := t.transact(func(r *request) { r.deleteTable(stamp.Table(instance)) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("deleting nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
	}
	return nil
}

// add appends the table to the transaction.
func (t table) add(r *request) {
	r.addTable(t.name)
	for i, s := range t.sets {
		r.addSet(t.name, uint32(i+1), s)
	}
	for _, c := range t.chains {
		r.addChain(t.name, c)
		r.addRules(t.name, c)
	}
}
