package ipam

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// remember is how many free addresses that were given out before are kept in
// each family of a pool before the oldest of them goes before fresh ones.
const remember = 1 << 16

// IPAM is an agent's pools. All of its methods may be called at once.
type IPAM struct {
	mu       sync.Mutex
	config   []PoolConfig
	draining []drain        // CIDRs that the config no longer has
	drained  []netip.Prefix // to be told by Drained
	pools    []*pool        // as configured, then those that only drain
	byName   map[string]*pool
	table    table
	strays   map[netip.Addr]int64 // outside of every CIDR: end of cooldown, or inUse
	remember int
}

// pool is a pool's state. A space is nil where it has no CIDR.
type pool struct {
	name       string
	cooldown   time.Duration
	configured bool
	v4, v6     *space
	drain      *space // its draining CIDRs, of both families
}

// Claim is what one claim got: an address of each family that the pool has.
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

// New returns pools of which everything is free.
func New(pools []PoolConfig) (*IPAM, error) { return newIPAM(pools, remember) }

func newIPAM(pools []PoolConfig, remember int) (*IPAM, error) {
	p := &IPAM{strays: make(map[netip.Addr]int64), remember: remember}
	if err := p.Set(pools, time.Time{}); err != nil {
		return nil, err
	}
	return p, nil
}

// Claim takes one address of each family that the pool has; "" is the default
// pool. It is ErrUnknownPool or an *ExhaustedError if it takes none.
func (p *IPAM) Claim(pool string, now time.Time) (Claim, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := p.poolNamed(pool)
	if err != nil {
		return Claim{}, err
	}
	if err := x.ready(nanos(now), true, true); err != nil {
		return Claim{}, err
	}
	return x.take(Claim{}), nil
}

// ClaimExact takes the wanted addresses, at most one of a family, and of the
// pool's other family whichever is next. It is ErrUnknownPool, an *AddrError
// or an *ExhaustedError if it takes none.
func (p *IPAM) ClaimExact(pool string, wanted []netip.Addr, now time.Time) (Claim, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := p.poolNamed(pool)
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
	return x.take(got), nil
}

// obtainable says why the pool cannot give out that very address.
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
		}
	}
	return nil
}

// Unclaim gives back a claim that was never committed. Nobody had its
// addresses, so that they need no cooldown; yet they are the last to be given
// out again. What is not in use stays as it is.
func (p *IPAM) Unclaim(c Claim, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range [...]netip.Addr{c.V4, c.V6} {
		c, off := p.locate(a)
		switch {
		case c == nil && p.strays[a] == inUse:
			delete(p.strays, a)
		case c != nil && c.space.isUsed(c, off):
			c.space.settle(nanos(now))
			c.space.put(c, off)
		}
	}
}

// Free lets an address that the ledger has forgotten rest until the given
// time. Without a cooldown that is the time at which it was freed.
func (p *IPAM) Free(a netip.Addr, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, off := p.locate(a); c != nil {
		c.space.rest(c, off, nanos(until))
		return
	}
	p.strays[a] = nanos(until)
}

// Available says why Claim would get nothing from the pool; "" is the default
// pool.
func (p *IPAM) Available(pool string, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := p.poolNamed(pool)
	if err != nil {
		return err
	}
	return x.ready(nanos(now), true, true)
}

// Pool returns the name of the pool that an address is of; also of one that
// drains.
func (p *IPAM) Pool(a netip.Addr) (name string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.table.find(a); c != nil {
		return c.pool.name, true
	}
	return "", false
}

// Default returns the name of the pool that Claim takes "" for; "" if there is
// none.
func (p *IPAM) Default() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.config) == 0 {
		return ""
	}
	return p.config[0].Name
}

// Cooldown returns how long a name that is freed now must rest: for an address
// of a configured pool what that says, for any other address the longest time
// that a pool has, for what is no address nothing.
func (p *IPAM) Cooldown(n hold.Name) time.Duration {
	a, err := ParseName(n)
	if err != nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.table.find(a); c != nil && c.pool.configured {
		return c.pool.cooldown
	}
	var longest time.Duration
	for _, x := range p.config {
		longest = max(longest, x.Cooldown)
	}
	return longest
}

func (p *IPAM) poolNamed(name string) (*pool, error) {
	if name == "" && len(p.config) > 0 {
		return p.pools[0], nil
	}
	x, ok := p.byName[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("pool %.80q: %w", name, ErrUnknownPool)
	case !x.configured:
		return nil, fmt.Errorf("pool %q: %w any more: it is draining", name, ErrUnknownPool)
	}
	return x, nil
}

// locate returns where the state of an address is; nil if it is in no CIDR, or
// is none that could be given out.
func (p *IPAM) locate(a netip.Addr) (*cidr, uint64) {
	c := p.table.find(a)
	if c == nil {
		return nil, 0
	}
	off, ok := c.offset(a)
	if !ok {
		return nil, 0
	}
	return c, off
}

// ready says why the pool has no address of the families, or nil.
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
	err := &ExhaustedError{Pool: x.name, Family: family, Size: s.size(), Used: s.used, Resting: s.resting}
	err.NextFree, _ = s.next()
	return err
}

// take fills in the families that the claim lacks. The pool is ready.
func (x *pool) take(c Claim) Claim {
	if !c.V4.IsValid() && x.v4 != nil {
		c.V4 = x.v4.take()
	}
	if !c.V6.IsValid() && x.v6 != nil {
		c.V6 = x.v6.take()
	}
	return c
}
