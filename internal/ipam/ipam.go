package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	strays   map[netip.Addr]int64           // outside of every CIDR: end of cooldown, or inUse
	passes   int64                          // how many there were
	lost     time.Time                      // when who had which address was lost (Quarantine); zero: it was not
	closed   int64                          // Unix nanoseconds: nothing is given out before
	first    map[netip.Prefix]time.Duration // what its pool said when it had a CIDR first (Quarantine)
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

// New returns pools of which everything is free.
func New(pools []PoolConfig) (*IPAM, error) { return newIPAM(pools, remember) }

func newIPAM(pools []PoolConfig, remember int) (*IPAM, error) {
	p := &IPAM{strays: make(map[netip.Addr]int64), first: make(map[netip.Prefix]time.Duration), remember: remember}
	if err := p.Set(pools, time.Time{}); err != nil {
		return nil, err
	}
	return p, nil
}

// Unclaim gives back a claim that was never committed. Nobody had its
// addresses, so that they need no cooldown; yet they are the last to be given
// out again. What is not in use stays as it is.
func (p *IPAM) Unclaim(c Claim, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range [...]netip.Addr{c.V4, c.V6} {
		p.unclaim(a, now)
	}
}

func (p *IPAM) unclaim(a netip.Addr, now time.Time) {
	c, off := p.locate(a)
	switch {
	case c == nil && p.strays[a] == inUse:
		delete(p.strays, a)
	case c != nil && c.space.isUsed(c, off):
		c.space.settle(nanos(now))
		c.space.put(c, off)
	}
}

// Free lets an address that the ledger has forgotten rest until the given
// time; the zero time is at once.
func (p *IPAM) Free(a netip.Addr, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, off := p.locate(a); c != nil {
		c.space.rest(c, off, nanos(until))
		return
	}
	p.strays[a] = nanos(until)
}

// Available says why Claim would get nothing from the pool, even if all that is
// due were rinsed; "" is the default pool.
func (p *IPAM) Available(pool string, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := p.poolOpen(pool, now)
	if err != nil {
		return err
	}
	for _, v4 := range [...]bool{true, false} {
		var full *ExhaustedError
		if err := x.ready(nanos(now), v4, !v4); errors.As(err, &full) && full.Due == 0 {
			return err
		}
	}
	return nil
}

// Cooldown returns how long a name that is freed now must rest: an address as long
// as its pool says, or said when its CIDR was taken out of the config; what is no
// address not at all. It is false for an address of which no pool is known to have
// said anything.
func (p *IPAM) Cooldown(n hold.Name) (time.Duration, bool) {
	a, err := ParseName(n)
	if err != nil {
		return 0, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.table.find(a)
	switch {
	case c == nil:
		return 0, false
	case c.space != c.pool.drain:
		return c.pool.cooldown, true
	}
	i := slices.IndexFunc(p.draining, func(d drain) bool { return d.prefix == c.prefix })
	cooldown := p.draining[i].cooldown
	return max(0, cooldown), cooldown != Unknown
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
