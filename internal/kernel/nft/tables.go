package nft

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/stamp"
)

// Tables is the nftables of one network namespace. Its methods may be called
// concurrently.
type Tables struct {
	at     *ns.Netns
	commit func(table) error // writes a table over the one of the same name, in one transaction
	lacks  atomic.Uint32     // the Parts that write left out of the last table
	conns  conns
	turn   sync.Mutex // whoever is in a transaction has it
}

// Open returns the nftables of a namespace, which the caller keeps open. Open reads
// and changes nothing yet.
func Open(at *ns.Netns) *Tables {
	t := &Tables{at: at}
	t.commit, t.conns.tables = t.replace, t
	return t
}

// sendBuffer, in bytes, limits a transaction, which is one message to the kernel and has
// to fit into the socket's send buffer. (Without privilege the buffer has 212,992 bytes,
// enough for some 4,000 CIDRs.) The kernel refuses a longer transaction as a whole, with
// EMSGSIZE.
const sendBuffer = 16 << 20

// A netlink attribute ends at 64 KiB; an element of an IPv6 set takes 36 bytes, and an element of an
// IPv6 map of host ports less than 120.
const (
	elementsPerMessage = 1024
	entriesPerMessage  = 512
)

// Replace writes the ruleset's table in one transaction, over any table of that name. So
// no packet meets half a table, and dying pods stay cut off without a gap. Each call
// tries the whole table first. If the kernel does not support all of it, Replace leaves
// out as few Parts as possible; Lacks returns which.
//
//	add table inet NAME; delete table inet NAME; table inet NAME { ... }
func (t *Tables) Replace(r Ruleset) error { return t.write(r, allParts+1) }

// Complete writes the ruleset's table again if the kernel now accepts more of the table than when
// Tables last wrote it. Otherwise Complete leaves the table alone, with everything that packets have
// put into the table's sets.
func (t *Tables) Complete(r Ruleset) error { return t.write(r, t.Lacks()) }

// Change turns the table of the ruleset was into that of r. Change keeps what packets have put into the
// sets that both tables have with the same meaning, so that a new pool does not give every pod its
// share of connections anew. Change falls back to Replace if the kernel's table differs from was, if
// Tables wrote the last table without some Parts, if instance, live group, limit of connections or HostPorts
// differ, or if the kernel refuses the change.
func (t *Tables) Change(was, r Ruleset) error {
	if t.Lacks() == 0 && was.Instance == r.Instance && was.Live == r.Live && was.Connections == r.Connections && was.HostPorts == r.HostPorts {
		if _, err := t.Verify(was); err == nil && t.amend(was.table(0), r.table(0)) == nil {
			return nil
		}
	}
	return t.Replace(r)
}

// amend turns the table was into the table want, in one transaction, with the tables of family bridge, which either both have or
// neither has. It keeps the dynamic sets, and the
// chains, that are alike in both tables, and writes all rules anew.
func (t *Tables) amend(was, want table) error {
	err := t.transact(func(r *request) {
		id := want.change(r, was, 1)
		if want.bridge != nil {
			want.bridge.change(r, *was.bridge, id)
		}
	})
	if err != nil {
		return fmt.Errorf("changing nftables table %s: %w", want.name, kernel.Classify(err))
	}
	return nil
}

// change appends what turns the table was into the table t to the transaction. Its sets get numbers from id, and change returns the number
// behind them.
func (t table) change(r *request, was table, id uint32) uint32 {
	r.in(t.family)
	for _, c := range was.chains {
		r.deleteRules(was.name, c)
		if !slices.ContainsFunc(t.chains, c.like) {
			r.deleteChain(was.name, c)
		}
	}
	for _, s := range was.sets {
		if !s.dynamic || !slices.ContainsFunc(t.sets, s.like) {
			r.deleteSet(was.name, s)
		}
	}
	for _, s := range t.sets {
		if !s.dynamic || !slices.ContainsFunc(was.sets, s.like) {
			r.addSet(t.name, id, s)
			id++
		}
	}
	for _, c := range t.chains {
		if !slices.ContainsFunc(was.chains, c.like) {
			r.addChain(t.name, c)
		}
		r.addRules(t.name, c)
	}
	return id
}

// write tries to write the table without the parts of each of attempts, in their order. It returns nil
// after the first success, and also when it reaches last, which it does not try. An error that is not
// about a missing expression ends the tries, and write returns that error.
func (t *Tables) write(r Ruleset, last Parts) error {
	var refused error
	for _, without := range attempts {
		if without == last {
			return nil
		}
		if without&^r.parts() != 0 {
			continue // the ruleset does not ask for one of these parts: write has tried this table already
		}
		err := t.commit(r.table(without))
		if err == nil {
			t.lacks.Store(uint32(without))
			return nil
		}
		if refused = cmp.Or(refused, err); !cannot(err, r.parts()&^without) {
			return err
		}
	}
	return refused
}

// Lacks returns the Parts that Tables left out of the table that it wrote last.
func (t *Tables) Lacks() Parts { return Parts(t.lacks.Load()) }

// replace writes a table, all of it, over any table of that name, with the one of family bridge.
func (t *Tables) replace(want table) error {
	var gone []table
	if want.bridge == nil { // a kernel without tables of family bridge must not even be asked to delete one
		there, _, err := t.read(want.name)
		if err != nil && !errors.Is(err, errNoTable) {
			return err
		}
		if there.bridge != nil {
			gone = []table{*there.bridge}
		}
	}
	err := t.transact(func(r *request) {
		for _, each := range append(want.both(), gone...) {
			r.in(each.family).addTable(want.name) // else the deletion would fail where there is no table
			r.deleteTable(want.name)
		}
		id := uint32(1)
		for _, each := range want.both() {
			id = each.add(r, id)
		}
	})
	if err != nil {
		return fmt.Errorf("replacing nftables table %s: %w", want.name, kernel.Classify(err))
	}
	return nil
}

// transact sends all that ask puts into the request as one transaction: the kernel does
// all of it or nothing. Transactions come one after the other, as they do in the kernel: a second writer would be
// closed before its news are read, and these would count as others'.
func (t *Tables) transact(ask func(*request)) error {
	t.turn.Lock()
	defer t.turn.Unlock()
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

// Delete removes the instance's table, and the one of family bridge after it: Holder sees either. It succeeds if there is no such table.
//
//	delete table inet NAME; delete table bridge NAME
func (t *Tables) Delete(instance string) error {
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_BRIDGE} {
		err := t.transact(func(r *request) { r.in(family).deleteTable(stamp.Table(instance)) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("deleting nftables table %s: %w", stamp.Table(instance), kernel.Classify(err))
		}
	}
	return nil
}

// add appends the table to the transaction. Its sets get numbers from id, and add returns the number behind them.
func (t table) add(r *request, id uint32) uint32 {
	r.in(t.family).addTable(t.name)
	for _, s := range t.sets {
		r.addSet(t.name, id, s)
		id++
	}
	for _, c := range t.chains {
		r.addChain(t.name, c)
		r.addRules(t.name, c)
	}
	return id
}
