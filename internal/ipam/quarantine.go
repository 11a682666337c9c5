package ipam

import (
	"maps"
	"net/netip"
	"time"
)

// Quarantine lets every address of every pool rest until the given time: the ledger was lost
// at since, and with it the knowledge of who had which address when. Owners keep the addresses that
// they have.
//
// A CIDR may come back into the config only after the loss, with a cooldown that nobody knew
// when until was chosen. So each CIDR counts with the cooldown that its pool had when the pool
// first had the CIDR after the loss. A pool gives out no address until these cooldowns, counted
// from since, are over. first has these cooldowns of CIDRs that earlier runs of the agent had.
// A cooldown that a pool gets later applies only to addresses that are freed later.
//
// rinsed are the CIDRs for which an earlier run has done the pass behind the quarantine (Behind).
func (p *IPAM) Quarantine(since, until time.Time, first map[netip.Prefix]time.Duration, rinsed []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.closed = since, nanos(until)
	clear(p.rinsed)
	for _, cidr := range rinsed {
		p.rinsed[cidr] = true
	}
	maps.Copy(p.first, first)
}

// Behind reports whether the ledger was lost, and the pass behind the quarantine has been done for a CIDR. From then on, a
// pool with the CIDR is like any other: what Taint says keeps no claim.
func (p *IPAM) Behind(cidr netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.lost.IsZero() && p.rinsed[cidr]
}

// First returns the cooldown that a CIDR's pool had when it first had the CIDR after the
// ledger was lost; false if the ledger was not lost, or if no pool has had the CIDR.
func (p *IPAM) First(cidr netip.Prefix) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cooldown, ok := p.first[cidr]
	return cooldown, ok && !p.lost.IsZero()
}

// poolOpen returns the pool of a name, or an error if there is no such pool or a quarantine
// keeps it from giving out addresses.
func (p *IPAM) poolOpen(name string, now time.Time) (*pool, error) {
	x, err := p.poolNamed(name)
	if err == nil {
		err = p.closedTo(x, now)
	}
	return x, err
}

// closedTo returns why a quarantine keeps a pool from giving out addresses; nil: none does. Behind the
// quarantine the node has to forget the traffic of all addresses that nobody has (Pass.Lost), because any
// of them may have been a pod's: until then the error says that addresses are due.
func (p *IPAM) closedTo(x *pool, now time.Time) error {
	if p.lost.IsZero() {
		return nil
	}
	until, unrinsed := p.quarantined(x)
	switch {
	case nanos(now) < until:
		return &ExhaustedError{Pool: x.name, NextFree: time.Unix(0, until), Lost: true}
	case len(unrinsed) > 0:
		return &ExhaustedError{Pool: x.name, Due: len(unrinsed), Lost: true}
	}
	return nil
}

// quarantined returns until when a quarantine keeps a pool from giving out addresses, in Unix nanoseconds,
// and the CIDRs of the pool whose quarantine has not been followed by a pass; zero: there is no quarantine.
func (p *IPAM) quarantined(x *pool) (until int64, unrinsed []netip.Prefix) {
	if p.lost.IsZero() {
		return 0, nil
	}
	until = p.closed
	for _, s := range [...]*space{x.v4, x.v6} {
		if s != nil {
			for _, c := range s.cidrs {
				until = max(until, nanos(p.lost.Add(p.first[c.prefix])))
				if !p.rinsed[c.prefix] {
					unrinsed = append(unrinsed, c.prefix)
				}
			}
		}
	}
	return until, unrinsed
}

// Longest returns the longest cooldown of all pools.
func (p *IPAM) Longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.longest()
}

func (p *IPAM) longest() time.Duration {
	var longest time.Duration
	for _, x := range p.config {
		longest = max(longest, x.Cooldown)
	}
	return longest
}

// Adopt claims the free addresses among addrs, for an owner that the ledger does not know. The
// claim holds until it is committed, or until Disown. An address that is in use, rests or is due
// stays as it is.
func (p *IPAM) Adopt(addrs []netip.Addr, now time.Time) (claimed []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if state, ok := p.stateOf(a, now); !ok || state == rested {
			p.place(mark{addr: a, state: used})
			p.doubt(a)
			claimed = append(claimed, a)
		}
	}
	return claimed
}

// Disown gives back addresses that Adopt claimed and nobody committed.
func (p *IPAM) Disown(addrs []netip.Addr, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		p.unclaim(a, now)
	}
}

// stateOf returns the state of an address; false if it has none.
func (p *IPAM) stateOf(a netip.Addr, now time.Time) (state, bool) {
	c, off := p.locate(a)
	if c == nil {
		until, ok := p.strays[a]
		switch {
		case until == inUse:
			return used, true
		case ok && until > nanos(now):
			return resting, true
		}
		return rested, false
	}
	c.space.settle(nanos(now))
	i := c.index.slot(off)
	if i == 0 {
		return rested, false
	}
	return c.space.slots[i].state, true
}

// PoolOf returns the name of the pool that has an address, even in a draining CIDR; "" if
// none does.
func (p *IPAM) PoolOf(a netip.Addr) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.table.find(a); c != nil {
		return c.pool.name
	}
	return ""
}
