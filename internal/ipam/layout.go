package ipam

import (
	"math"
	"net/netip"
	"reflect"
	"slices"
	"time"
)

// drain is a CIDR that is no longer in the config.
type drain struct {
	pool     string // the pool that it was in
	prefix   netip.Prefix
	cooldown time.Duration // that pool's last cooldown, or Unknown
}

// Unknown stands for the cooldown of a former pool if nobody knows that cooldown any more.
const Unknown time.Duration = -1

// inUse stands in strays for a stray that is in use.
const inUse = math.MaxInt64

// Set changes the pools to a new config's pools. Addresses keep their state. An added CIDR
// can be used at once, even if some of its addresses have been in use since an earlier
// config. A removed CIDR drains: no more addresses are given out of it, and Drained returns
// it when none of its addresses is in use or rests. A CIDR that comes back drains no longer,
// even if it comes back as a part of a larger one or in another pool. A Set that fails
// changes nothing.
func (p *IPAM) Set(pools []PoolConfig, now time.Time) error {
	if err := Validate(pools); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if reflect.DeepEqual(pools, p.config) {
		return nil
	}
	draining := p.draining
	for _, cfg := range pools {
		for _, c := range cfg.CIDRs {
			if p.config != nil && !p.has(c) {
				p.tainted[c] = true // other pods may have had its addresses, here or of another program
			}
		}
	}
	for _, x := range p.config {
		for _, c := range x.CIDRs {
			draining = append(draining, drain{x.Name, c, x.Cooldown})
		}
	}
	config := slices.Clone(pools)
	for i := range config {
		config[i].CIDRs = slices.Clone(config[i].CIDRs)
		for _, c := range config[i].CIDRs {
			if _, had := p.first[c]; !had {
				p.first[c] = config[i].Cooldown
			}
		}
	}
	p.layout(config, draining)
	p.forgetStrays(now)
	return nil
}

// has reports whether the config has a CIDR.
func (p *IPAM) has(c netip.Prefix) bool {
	return slices.ContainsFunc(p.config, func(x PoolConfig) bool { return slices.Contains(x.CIDRs, c) })
}

// Drain adds a CIDR that the config does not have, because its addresses may be in use since an
// earlier run of the agent. The CIDR's freed addresses rest for cooldown, which is the last
// cooldown of the CIDR's former pool, or Unknown. If the CIDR is known already, Drain does nothing.
func (p *IPAM) Drain(pool string, prefix netip.Prefix, cooldown time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.layout(p.config, append(p.draining, drain{pool, prefix.Masked(), cooldown}))
}

// Drained forgets the draining CIDRs that have no used or resting address any more, and returns
// them. It also returns draining CIDRs that lie in a configured CIDR by now.
func (p *IPAM) Drained(now time.Time) []netip.Prefix {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetStrays(now)
	empty := make(map[netip.Prefix]bool)
	for _, x := range p.pools {
		if x.drain == nil {
			continue
		}
		x.drain.settle(nanos(now))
		for _, c := range x.drain.cidrs {
			if c.used+c.resting+c.due == 0 {
				empty[c.prefix] = true
				p.drained = append(p.drained, c.prefix)
			}
		}
	}
	if len(empty) > 0 {
		left := slices.DeleteFunc(slices.Clone(p.draining), func(d drain) bool { return empty[d.prefix] })
		p.layout(p.config, left)
	}
	drained := p.drained
	p.drained = nil
	return drained
}

// layout builds the pools anew for a config and the CIDRs that drain beside it, and puts the
// state of every address where it belongs now. The cost of layout grows with the number of
// addresses that have a state; claiming and freeing have no such cost.
func (p *IPAM) layout(config []PoolConfig, draining []drain) {
	marks := p.dump()
	p.config, p.pools, p.byName = config, nil, make(map[string]*pool)
	var all []*cidr
	add := func(s *space) *space {
		if s != nil {
			all = append(all, s.cidrs...)
		}
		return s
	}
	for _, cfg := range config {
		x := p.pool(cfg.Name)
		x.configured, x.cooldown = true, cfg.Cooldown
		v4, v6 := families(cfg.CIDRs)
		x.v4 = add(newSpace(v4, x, p.remember))
		x.v6 = add(newSpace(v6, x, p.remember))
	}
	p.drainBeside(draining, newTable(all))
	drains := make(map[*pool][]netip.Prefix)
	for _, d := range p.draining {
		x := p.pool(d.pool)
		drains[x] = append(drains[x], d.prefix)
	}
	for _, x := range p.pools {
		x.drain = add(newSpace(drains[x], x, p.remember))
	}
	p.table = newTable(all)
	clear(p.strays)
	for _, m := range marks {
		p.place(m)
	}
}

// drainBeside sets which CIDRs drain beside the config's CIDRs: each once, and none that equals a
// configured CIDR or lies in it. Drained will return a CIDR that lies in a larger
// configured one, because it exists no longer: its addresses belong to the larger one.
func (p *IPAM) drainBeside(draining []drain, configured table) {
	p.draining = nil
	seen := make(map[netip.Prefix]bool)
	for _, d := range draining {
		c := configured.find(d.prefix.Addr())
		inside := c != nil && c.prefix.Bits() <= d.prefix.Bits()
		switch {
		case seen[d.prefix]:
		case !inside:
			p.draining = append(p.draining, d)
		case !slices.Contains(p.drained, d.prefix):
			p.drained = append(p.drained, d.prefix)
		}
		seen[d.prefix] = true
	}
	p.drained = slices.DeleteFunc(p.drained, func(d netip.Prefix) bool {
		c := configured.find(d.Addr())
		again := slices.ContainsFunc(p.draining, func(o drain) bool { return o.prefix == d })
		return again || c != nil && c.prefix == d
	})
}

// pool returns the pool of a name, and makes it if there is none.
func (p *IPAM) pool(name string) *pool {
	x, ok := p.byName[name]
	if !ok {
		x = &pool{name: name}
		p.byName[name] = x
		p.pools = append(p.pools, x)
	}
	return x
}

func families(prefixes []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, prefix := range prefixes {
		if prefix.Addr().Is4() {
			v4 = append(v4, prefix)
		} else {
			v6 = append(v6, prefix)
		}
	}
	return v4, v6
}
