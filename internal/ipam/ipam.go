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

// remember is how many free addresses, which were given out before, each family of a pool
// keeps. If it has more, the oldest of them is given out before fresh ones.
const remember = 1 << 16

// IPAM is an agent's pools. Its methods may be called concurrently.
type IPAM struct {
	mu       sync.Mutex
	config   []PoolConfig
	draining []drain        // CIDRs that the config no longer has
	drained  []netip.Prefix // CIDRs that the next Drained returns
	pools    []*pool        // in the config's order, then those that only drain
	byName   map[string]*pool
	table    table
	strays   map[netip.Addr]int64           // addresses outside of every CIDR: end of cooldown, or inUse
	passes   int64                          // how many passes Due has begun
	taints   int64                          // how often Taint was called
	tainted  map[netip.Prefix]bool          // CIDRs of which a pass has to find out what the kernel remembers (Taint)
	lost     time.Time                      // when the ledger was lost (Quarantine); zero: it was not
	closed   int64                          // no address is given out before this time (Quarantine), in Unix nanoseconds
	rinsed   map[netip.Prefix]bool          // the CIDRs for which a pass has followed the quarantine
	first    map[netip.Prefix]time.Duration // the cooldown of each CIDR's pool when the pool first had the CIDR (Quarantine)
	remember int
}

// pool is a pool's state. A space is nil if the pool has no CIDR for it.
type pool struct {
	name       string
	cooldown   time.Duration
	configured bool
	v4, v6     *space
	drain      *space // the draining CIDRs, of both families
}

// New returns pools whose addresses are all free.
func New(pools []PoolConfig) (*IPAM, error) { return newIPAM(pools, remember) }

func newIPAM(pools []PoolConfig, remember int) (*IPAM, error) {
	p := &IPAM{strays: make(map[netip.Addr]int64), first: make(map[netip.Prefix]time.Duration), rinsed: make(map[netip.Prefix]bool), tainted: make(map[netip.Prefix]bool), remember: remember}
	if err := p.Set(pools, time.Time{}); err != nil {
		return nil, err
	}
	return p, nil
}

// Unclaim gives back a claim that was never committed. Its addresses need no cooldown,
// because nobody had them; but they are the last to be given out again. Unclaim leaves an
// address alone that is not in use.
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

// Free lets an address rest until the given time, after the ledger has freed it. With the
// zero time it is free at once.
func (p *IPAM) Free(a netip.Addr, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, off := p.locate(a); c != nil {
		c.space.rest(c, off, nanos(until))
		return
	}
	p.strays[a] = nanos(until)
}

// Available returns the error that Claim would return for the pool even if all due addresses
// were rinsed; nil if it would then succeed. "" is the default pool.
func (p *IPAM) Available(pool string, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := p.poolNamed(pool)
	if err == nil {
		err = p.closedTo(x, now)
	}
	var full *ExhaustedError
	if errors.As(err, &full) && full.Due > 0 {
		err = nil
	}
	if err != nil {
		return err
	}
	for _, v4 := range [...]bool{true, false} {
		if err := x.ready(nanos(now), v4, !v4); errors.As(err, &full) && full.Due == 0 {
			return err
		}
	}
	return nil
}

// Cooldown returns how long a name that is freed now must rest. An address has the cooldown of its
// pool or, if the address's CIDR was taken out of the config, the cooldown that the pool had then.
// The cooldown of a name that is no address is 0. Cooldown returns false for an address if no
// pool's cooldown is known for it.
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

// locate returns the CIDR and offset of an address; nil if no CIDR has the address or can
// give it out.
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
