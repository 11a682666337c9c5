package ipam

import (
	"maps"
	"net/netip"
	"time"
)

// Quarantine lets every address of every pool rest until the given time, known
// or not: the ledger was lost, and with it who had which address when. A CIDR may come
// back later than that, whose cooldown nobody knew: its pool gives out nothing for the
// cooldown from since on that it said when it had the CIDR first since then. first is
// that of CIDRs which earlier runs of the agent have had; what a pool says later is for
// what is freed later. Addresses that owners have stay theirs.
func (p *IPAM) Quarantine(since, until time.Time, first map[netip.Prefix]time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost, p.closed = since, nanos(until)
	maps.Copy(p.first, first)
}

// First returns the cooldown that a CIDR's pool said when it had the CIDR first since
// the ledger was lost; false if it was not lost, or no pool has had the CIDR.
func (p *IPAM) First(cidr netip.Prefix) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cooldown, ok := p.first[cidr]
	return cooldown, ok && !p.lost.IsZero()
}

// poolOpen returns a pool that addresses can be given out of.
func (p *IPAM) poolOpen(name string, now time.Time) (*pool, error) {
	x, err := p.poolNamed(name)
	if err != nil || p.lost.IsZero() {
		return x, err
	}
	until := p.closed
	for _, s := range [...]*space{x.v4, x.v6} {
		if s != nil {
			for _, c := range s.cidrs {
				until = max(until, nanos(p.lost.Add(p.first[c.prefix])))
			}
		}
	}
	if nanos(now) < until {
		return nil, &ExhaustedError{Pool: x.name, NextFree: time.Unix(0, until), Lost: true}
	}
	return x, nil
}

// Longest returns the longest cooldown that a pool has.
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

// Adopt claims those of some addresses that are nobody's and do not rest, for an
// owner that the ledger has not heard of. Such a claim holds until it is
// committed, or until Disown.
func (p *IPAM) Adopt(addrs []netip.Addr, now time.Time) (claimed []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if state, ok := p.stateOf(a, now); !ok || state == rested {
			p.place(mark{addr: a, state: used})
			claimed = append(claimed, a)
		}
	}
	return claimed
}

// Disown gives back what Adopt claimed and nobody committed.
func (p *IPAM) Disown(addrs []netip.Addr, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		p.unclaim(a, now)
	}
}

// stateOf returns the state of an address; false for one that has none.
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

// PoolOf returns the pool that has an address, or that drains it; "": none.
func (p *IPAM) PoolOf(a netip.Addr) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.table.find(a); c != nil {
		return c.pool.name
	}
	return ""
}
