package nft

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// Tables is the nftables of one network namespace. Its methods may be called at
// once; each uses a socket of its own.
type Tables struct {
	at     *ns.Netns
	simple atomic.Bool // this kernel cannot look sources up: see Ruleset.Live
}

// Open returns the nftables of the namespace, which must stay open. Nothing is
// read or changed yet.
func Open(at *ns.Netns) *Tables { return &Tables{at: at} }

// A transaction is one message to the kernel, and as many bytes as the send
// buffer has (212,992 without privilege: some 4,000 CIDRs). What is longer is
// refused with EMSGSIZE, and nothing of it is done.
const sendBuffer = 16 << 20

// A netlink attribute ends at 64 KiB; an element of an IPv6 set takes 36 bytes.
const elementsPerMessage = 1024

// Replace writes the ruleset's table, whatever stands there, in one
// transaction: no packet meets half of it, and it is cut off without a gap.
//
//	add table inet NAME; delete table inet NAME; table inet NAME { ... }
func (t *Tables) Replace(r Ruleset) error {
	err := t.replace(t.able(r))
	if err != nil && r.Live != 0 && !t.simple.Load() && errors.Is(err, kernel.ErrNotFound) {
		t.simple.Store(true) // no such expression: what else may not be found fails again
		if err = t.replace(t.able(r)); err != nil {
			t.simple.Store(false)
		}
	}
	return err
}

// able is the ruleset as far as this kernel can have it.
func (t *Tables) able(r Ruleset) Ruleset {
	if t.simple.Load() {
		r.Live = 0
	}
	return r
}

func (t *Tables) replace(r Ruleset) error {
	c, err := t.writer()
	if err != nil {
		return fmt.Errorf("replacing nftables table %s: %w", r.Table(), kernel.Classify(err))
	}
	nt := &nftables.Table{Name: r.Table(), Family: nftables.TableFamilyINet}
	c.AddTable(nt) // or deleting it could fail
	c.DelTable(nt)
	if err := r.table().add(c, nt); err != nil {
		return fmt.Errorf("encoding nftables table %s: %w", r.Table(), err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("replacing nftables table %s: %w", r.Table(), kernel.Classify(err))
	}
	return nil
}

// Delete removes the instance's table. If it is not there, that is success.
//
//	delete table inet NAME
func (t *Tables) Delete(instance string) error {
	c, err := t.writer()
	if err == nil {
		c.DelTable(&nftables.Table{Name: TableName(instance), Family: nftables.TableFamilyINet})
		err = c.Flush()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("deleting nftables table %s: %w", TableName(instance), kernel.Classify(err))
	}
	return nil
}

// writer returns a connection for one transaction. An error in it stays, so it
// is not used for a second.
func (t *Tables) writer() (*nftables.Conn, error) {
	return nftables.New(nftables.WithNetNSFd(t.at.Fd()),
		nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetWriteBuffer(sendBuffer) }))
}

// add appends the table to the transaction.
func (t table) add(c *nftables.Conn, nt *nftables.Table) error {
	c.AddTable(nt)
	for i, s := range t.sets {
		// The number tells the sets of one transaction apart. The library's
		// own counter is not safe for several connections.
		ns := &nftables.Set{Table: nt, ID: uint32(i + 1), Name: s.name, KeyType: s.of.datatype, Interval: true}
		if err := c.AddSet(ns, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.name, err)
		}
		members := elements(s.ranges)
		for len(members) > 0 {
			n := min(len(members), elementsPerMessage)
			if err := c.SetAddElements(ns, members[:n]); err != nil {
				return fmt.Errorf("set %s: %w", s.name, err)
			}
			members = members[n:]
		}
	}
	accept := nftables.ChainPolicyAccept
	for _, ch := range t.chains {
		nc := c.AddChain(&nftables.Chain{
			Name: ch.name, Table: nt, Type: ch.typ, Policy: &accept,
			Hooknum:  nftables.ChainHookRef(nftables.ChainHook(ch.hook)),
			Priority: nftables.ChainPriorityRef(nftables.ChainPriority(ch.priority)),
		})
		for _, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: nt, Chain: nc, Exprs: r.exprs, UserData: comment(r.comment)})
		}
	}
	return nil
}
