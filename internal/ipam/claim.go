package ipam

import (
	"net/netip"
	"time"
)

// Claim is the result of a claim: an address of each family that the pool has.
type Claim struct {
	V4, V6 netip.Addr // invalid: none
}

// Addrs returns the claim's addresses, IPv4 first.
func (c Claim) Addrs() []netip.Addr {
	as := make([]netip.Addr, 0, 2)
	for _, a := range [...]netip.Addr{c.V4, c.V6} {
		if a.IsValid() {
			as = append(as, a)
		}
	}
	return as
}

// Claim takes one address of each family that the pool has; "" is the default pool. If it
// fails it takes none, and the error is ErrUnknownPool or an *ExhaustedError.
func (p *IPAM) Claim(pool string, now time.Time) (c Claim, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := p.poolOpen(pool, now)
	if err != nil {
		return Claim{}, err
	}
	if err := x.ready(nanos(now), true, true); err != nil {
		return Claim{}, err
	}
	x.take(&c)
	p.doubt(c.Addrs()...)
	return c, nil
}

// ClaimExact takes the wanted addresses, at most one of each family; in a family of the pool
// without a wanted address it takes the next free one. If it fails it takes none, and the
// error is ErrUnknownPool, an *AddrError or an *ExhaustedError.
func (p *IPAM) ClaimExact(pool string, wanted []netip.Addr, now time.Time) (Claim, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := p.poolOpen(pool, now)
	if err != nil {
		return Claim{}, err
	}
	var got Claim
	for _, a := range wanted {
		a = a.Unmap()
		mine := &got.V6
		if a.Is4() {
			mine = &got.V4
		}
		if mine.IsValid() {
			return Claim{}, &AddrError{Pool: x.name, Addr: a, Err: ErrTwice}
		}
		if err := p.obtainable(x, a, nanos(now)); err != nil {
			return Claim{}, err
		}
		*mine = a
	}
	if err := x.ready(nanos(now), !got.V4.IsValid(), !got.V6.IsValid()); err != nil {
		return Claim{}, err
	}
	for _, a := range wanted {
		c := p.table.find(a.Unmap())
		off, _ := c.offset(a.Unmap())
		c.space.use(c, off)
	}
	x.take(&got)
	p.doubt(got.Addrs()...)
	return got, nil
}

// doubt marks claimed addresses of tainted CIDRs: if nobody comes to use them, they are due when they are free.
func (p *IPAM) doubt(claimed ...netip.Addr) {
	if len(p.tainted) == 0 {
		return
	}
	for _, a := range claimed {
		if of, off := p.locate(a); of != nil && p.tainted[of.prefix] {
			of.space.mark(of, off, doubtful)
		}
	}
}

// obtainable returns the reason why the pool cannot give out address a; nil if it can.
func (p *IPAM) obtainable(x *pool, a netip.Addr, now int64) error {
	c := p.table.find(a)
	if c == nil || c.pool != x || c.space == x.drain {
		return &AddrError{Pool: x.name, Addr: a, Err: ErrOutside}
	}
	off, ok := c.offset(a)
	if !ok {
		return &AddrError{Pool: x.name, Addr: a, Err: ErrUnfit}
	}
	c.space.settle(now)
	if i := c.index.slot(off); i != 0 {
		switch slot := c.space.slots[i]; slot.state {
		case used:
			return &AddrError{Pool: x.name, Addr: a, Err: ErrTaken}
		case resting:
			return &AddrError{Pool: x.name, Addr: a, Err: ErrResting, Until: time.Unix(0, slot.until)}
		case due:
			return &AddrError{Pool: x.name, Addr: a, Err: ErrDue}
		}
	}
	return nil
}

// ready returns an *ExhaustedError if the pool has no free address of a family that the caller
// wants (v4, v6) and that the pool has.
func (x *pool) ready(now int64, v4, v6 bool) error {
	if v4 && x.v4 != nil {
		if x.v4.settle(now); !x.v4.free() {
			return x.exhausted(x.v4, "IPv4")
		}
	}
	if v6 && x.v6 != nil {
		if x.v6.settle(now); !x.v6.free() {
			return x.exhausted(x.v6, "IPv6")
		}
	}
	return nil
}

func (x *pool) exhausted(s *space, family string) error {
	err := &ExhaustedError{Pool: x.name, Family: family, Size: s.size(), Used: s.used, Resting: s.resting + s.length[due], Due: s.length[due]}
	err.NextFree, _ = s.next()
	return err
}

// take fills in addresses of the families that the claim lacks. The pool must be ready.
func (x *pool) take(c *Claim) {
	if !c.V4.IsValid() && x.v4 != nil {
		c.V4 = x.v4.take()
	}
	if !c.V6.IsValid() && x.v6 != nil {
		c.V6 = x.v6.take()
	}
}
