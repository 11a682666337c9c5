package ipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Resting is an address in cooldown.
type Resting struct {
	Addr  netip.Addr
	Until time.Time
}

// mark is the state of one address, without the place where it is kept.
type mark struct {
	addr  netip.Addr
	state state
	until int64 // Unix nanoseconds, while it is resting
}

// Restore takes over what the ledger says: which addresses owners have, and for which addresses the
// ledger remembers a cooldown, even a cooldown that is over. Restore may be called at any time, and
// again. A claimed address is in use from then on, whatever its state was in the view. An address
// in `rests` rests, unless it is in use. The view also remembers addresses that are in no pool,
// because a later config may bring their pool.
func (p *IPAM) Restore(claimed []netip.Addr, rests []Resting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range claimed {
		p.place(mark{addr: a, state: used})
	}
	for _, r := range rests {
		p.place(mark{addr: r.Addr, state: resting, until: nanos(r.Until)})
	}
}

// place sets an address's state to a mark's state. place does not let an address in use rest.
func (p *IPAM) place(m mark) {
	c, off := p.locate(m.addr)
	switch {
	case c == nil && m.state == used:
		p.strays[m.addr] = inUse
	case c == nil && m.state == resting:
		p.strays[m.addr] = max(m.until, p.strays[m.addr])
	case c == nil: // a free address without a CIDR has no state
	case m.state == used:
		c.space.use(c, off)
		if m.until == doubtful || m.until == settled {
			c.space.mark(c, off, m.until)
		}
	case m.state == rested || m.state == due:
		c.space.enter(m.state, c.space.fetch(c, off))
	case !c.space.isUsed(c, off):
		c.space.rest(c, off, m.until)
	}
}

func (s *space) isUsed(c *cidr, off uint64) bool {
	i := c.index.slot(off)
	return i != 0 && s.slots[i].state == used
}

// dump returns the state of every address that has one. The rested, due and resting ones are
// each in their order.
func (p *IPAM) dump() []mark {
	var marks []mark
	for _, x := range p.pools {
		for _, s := range [...]*space{x.v4, x.v6, x.drain} {
			if s != nil {
				marks = s.dump(marks)
			}
		}
	}
	for a, until := range p.strays {
		if until == inUse {
			marks = append(marks, mark{addr: a, state: used})
		} else {
			marks = append(marks, mark{addr: a, state: resting, until: until})
		}
	}
	return marks
}

func (s *space) dump(marks []mark) []mark {
	add := func(i uint32) {
		x := s.slots[i]
		marks = append(marks, mark{s.cidrs[x.cidr].addr(x.off), x.state, x.until})
	}
	for i := lists; i < len(s.slots); i++ {
		if s.slots[i].state == used {
			add(uint32(i))
		}
	}
	for list := range uint32(lists) {
		for i := s.slots[list].next; i != list; i = s.slots[i].next {
			add(i)
		}
	}
	ends := slices.Concat(s.ends.queue[s.ends.first:], s.ends.heap)
	slices.SortFunc(ends, func(a, b end) int {
		return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(int32(a.seq-b.seq), 0))
	})
	for _, e := range ends {
		if s.current(e) {
			add(e.slot)
		}
	}
	return marks
}

// forgetStrays forgets strays whose cooldown is over.
func (p *IPAM) forgetStrays(now time.Time) {
	for a, until := range p.strays {
		if until != inUse && until <= nanos(now) {
			delete(p.strays, a)
		}
	}
}
