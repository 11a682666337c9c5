package ipam

import (
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Pass is one pass over the kernel's connection tracking, which makes the kernel forget the
// traffic of due addresses.
type Pass struct {
	Addrs  []netip.Addr   // the due addresses, which are not free before the pass
	Lost   []netip.Prefix // CIDRs of which nobody knows what traffic the kernel remembers (Unknown): their quarantine is over, or they are tainted (Taint)
	Next   time.Time      // when the next cooldown or quarantine ends; zero: none is left
	number int64
	taints int64 // how many calls of Taint the pass knows of
}

// Due returns the pass that begins now; Rinsed ends it. If two passes are under way at once,
// Rinsed frees addresses for the later one only.
func (p *IPAM) Due(now time.Time) Pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passes++
	pass := Pass{number: p.passes, taints: p.taints}
	for s := range p.spaces() {
		s.settle(nanos(now))
		pass.Addrs = slices.Grow(pass.Addrs, s.length[due])
		for i := s.slots[due].next; i != uint32(due); i = s.slots[i].next {
			x := &s.slots[i]
			x.until = pass.number
			pass.Addrs = append(pass.Addrs, s.cidrs[x.cidr].addr(x.off))
		}
		if t, ok := s.next(); ok && (pass.Next.IsZero() || t.Before(pass.Next)) {
			pass.Next = t
		}
	}
	for _, x := range p.pools {
		until, unrinsed := p.quarantined(x)
		switch {
		case nanos(now) >= until:
			pass.Lost = append(append(pass.Lost, unrinsed...), p.taintedOf(x, unrinsed)...)
		case len(unrinsed) == 0:
		case pass.Next.IsZero() || until < nanos(pass.Next):
			pass.Next = time.Unix(0, until)
		}
	}
	return pass
}

// Unknown reports whether an address is in one of the CIDRs, and neither an owner nor a cooldown has it.
func (p *IPAM) Unknown(cidrs []netip.Prefix, a netip.Addr, now time.Time) bool {
	if !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) }) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	state, known := p.stateOf(a, now)
	return !known || state == rested
}

// InUse reports whether somebody has an address, by a claim or by the ledger.
func (p *IPAM) InUse(a netip.Addr, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	state, known := p.stateOf(a, now)
	return known && state == used
}

// RestOn lets addresses of a pass rest until the given time if they must not be rinsed, because
// somebody else has them. They may be due ones, or unknown ones of the lost CIDRs. The caller calls it
// before Rinsed. If an address was claimed or became due again meanwhile, it stays as it is.
func (p *IPAM) RestOn(pass Pass, addrs []netip.Addr, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		c, off := p.locate(a)
		if c == nil {
			continue
		}
		now := slot{state: rested}
		if i := c.index.slot(off); i != 0 {
			now = c.space.slots[i]
		}
		if now.state == due && now.until == pass.number || now.state == rested && slices.Contains(pass.Lost, c.prefix) {
			c.space.rest(c, off, nanos(until))
		}
	}
}

// Rinsed ends a pass that succeeded. Its addresses are free now, except those that were claimed or became
// due again meanwhile, and its lost CIDRs are open. If the pools have changed since Due (Set, Drain,
// Drained), the addresses stay due, for another pass.
func (p *IPAM) Rinsed(pass Pass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.spaces() {
		for i := s.slots[due].next; s.slots[i].until == pass.number && i != uint32(due); i = s.slots[due].next {
			s.leave(i)
			s.enter(rested, i)
		}
	}
	if pass.taints != p.taints {
		return // the pass may have been too early for its lost CIDRs
	}
	for _, cidr := range pass.Lost {
		p.rinsed[cidr] = true
		delete(p.tainted, cidr)
	}
}

// spaces goes through all spaces.
func (p *IPAM) spaces() iter.Seq[*space] {
	return func(yield func(*space) bool) {
		for _, x := range p.pools {
			for _, s := range [...]*space{x.v4, x.v6, x.drain} {
				if s != nil && !yield(s) {
					return
				}
			}
		}
	}
}

// Taint says that the kernel may remember traffic of free addresses in the prefix. Nobody knows of which: the next pass
// finds out (Pass.Lost), and until then the pools of these CIDRs are Tainted. That pass leaves alone addresses in use. Those
// among them that nobody has settled (Settle) may have been free a moment ago: these are Doubtful.
func (p *IPAM) Taint(prefix netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taints++
	for s := range p.spaces() {
		for i := s.slots[due].next; i != uint32(due); i = s.slots[i].next {
			if x := &s.slots[i]; prefix.Contains(s.cidrs[x.cidr].addr(x.off)) {
				x.until = 0 // a pass that is under way may have been too early
			}
		}
		for i := lists; i < len(s.slots); i++ {
			if x := &s.slots[i]; x.state == used && x.until != settled && prefix.Contains(s.cidrs[x.cidr].addr(x.off)) {
				x.until = doubtful
			}
		}
		for _, c := range s.cidrs {
			if c.prefix.Overlaps(prefix) {
				p.tainted[c.prefix] = true
			}
		}
	}
}

// Doubtful returns those among addrs that are in use and have been tainted (Taint), while they were in use or before. If
// such an address is free without a rest, it is due.
func (p *IPAM) Doubtful(addrs []netip.Addr) (doubted []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if c, off := p.locate(a); c != nil && c.space.doubts(c, off) {
			doubted = append(doubted, a)
		}
	}
	return doubted
}

// Trust says of addresses in use that the kernel has forgotten what it remembered of them: they are not Doubtful until
// the next Taint. before is what Taints returned before the kernel was asked to forget: if there was a Taint since,
// Trust does nothing.
func (p *IPAM) Trust(addrs []netip.Addr, before int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taints != before {
		return
	}
	for _, a := range addrs {
		if c, off := p.locate(a); c != nil && c.space.doubts(c, off) {
			c.space.slots[c.index.slot(off)].until = 0
		}
	}
}

// Settle says of addresses in use that their users are reached by them: nobody else begins connections to them any more. A
// Doubtful one stays so.
func (p *IPAM) Settle(addrs []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if c, off := p.locate(a); c != nil && c.space.isUsed(c, off) && !c.space.doubts(c, off) {
			c.space.mark(c, off, settled)
		}
	}
}

// Settled returns those among addrs that are settled.
func (p *IPAM) Settled(addrs []netip.Addr) (settledOnes []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if c, off := p.locate(a); c != nil && c.space.isUsed(c, off) && c.space.slots[c.index.slot(off)].until == settled {
			settledOnes = append(settledOnes, a)
		}
	}
	return settledOnes
}

// Taints returns how often Taint was called.
func (p *IPAM) Taints() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taints
}

// Tainted reports whether the kernel may remember traffic of a pool's free addresses (Taint). "" is the
// default pool.
func (p *IPAM) Tainted(pool string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tainted) == 0 {
		return false
	}
	x, err := p.poolNamed(pool)
	return err == nil && len(p.taintedOf(x, nil)) > 0
}

// taintedOf returns the tainted CIDRs from which a pool gives out addresses, but for some.
func (p *IPAM) taintedOf(x *pool, but []netip.Prefix) (tainted []netip.Prefix) {
	for _, s := range [...]*space{x.v4, x.v6} {
		if s == nil {
			continue
		}
		for _, c := range s.cidrs {
			if p.tainted[c.prefix] && !slices.Contains(but, c.prefix) {
				tainted = append(tainted, c.prefix)
			}
		}
	}
	return tainted
}
