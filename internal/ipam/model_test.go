package ipam

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "replay the model test with this seed")

// model does what IPAM does in a plain way: it has one list of addresses, and searches it
// each time.
type model struct {
	addrs    []*modelAddr // in the order of the pools' CIDRs
	remember int
	seq      int
}

type modelAddr struct {
	addr  netip.Addr
	pool  string
	state state
	fresh bool // never given out: it has no state
	until time.Time
	seq   int // orders addresses by when they got their state
}

func newModel(pools []PoolConfig, remember int) *model {
	m := &model{remember: remember}
	for _, p := range pools {
		for _, prefix := range p.CIDRs {
			for a := prefix.Addr(); prefix.Contains(a); a = a.Next() {
				if _, ok := newCIDR(prefix).offset(a); ok {
					m.addrs = append(m.addrs, &modelAddr{addr: a, pool: p.Name, fresh: true})
				}
			}
		}
	}
	return m
}

func (m *model) set(a *modelAddr, s state, until time.Time) {
	m.seq++
	a.fresh, a.state, a.until, a.seq = false, s, until, m.seq
}

func (m *model) settle(now time.Time) {
	over := m.which(func(a *modelAddr) bool { return !a.fresh && a.state == resting && !a.until.After(now) })
	slices.SortFunc(over, func(a, b *modelAddr) int { return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.seq, b.seq)) })
	for _, a := range over {
		m.set(a, due, time.Time{})
	}
}

// rinse frees the due addresses, which have to be the same as those of the view.
func (m *model) rinse(addrs []netip.Addr, now time.Time) (same bool) {
	m.settle(now)
	all := m.which(func(a *modelAddr) bool { return !a.fresh && a.state == due })
	slices.SortFunc(all, func(a, b *modelAddr) int { return cmp.Compare(a.seq, b.seq) })
	for _, a := range addrs {
		if x := m.find(a); slices.Contains(all, x) {
			m.set(x, rested, time.Time{})
		} else {
			return false
		}
	}
	return len(all) == len(addrs)
}

func (m *model) which(is func(*modelAddr) bool) (as []*modelAddr) {
	for _, a := range m.addrs {
		if is(a) {
			as = append(as, a)
		}
	}
	return as
}

// next returns the address that a claim gets of a family; nil if there is none. has reports
// whether the pool has the family.
func (m *model) next(pool string, is4 bool) (a *modelAddr, has bool) {
	all := m.which(func(a *modelAddr) bool { return a.pool == pool && a.addr.Is4() == is4 })
	var oldest, fresh *modelAddr
	n := 0
	for _, a := range all {
		switch {
		case a.fresh && fresh == nil:
			fresh = a
		case !a.fresh && a.state == rested:
			if n++; oldest == nil || a.seq < oldest.seq {
				oldest = a
			}
		}
	}
	if fresh != nil && n <= m.remember {
		return fresh, true
	}
	return oldest, len(all) > 0
}

func (m *model) find(addr netip.Addr) *modelAddr {
	i := slices.IndexFunc(m.addrs, func(a *modelAddr) bool { return a.addr == addr })
	if i < 0 {
		return nil
	}
	return m.addrs[i]
}

// claim claims the wanted addresses and the next ones of the other families.
func (m *model) claim(pool string, wanted []netip.Addr, now time.Time) (c Claim, ok bool) {
	m.settle(now)
	for _, w := range wanted {
		a := m.find(w)
		if a == nil || a.pool != pool || !a.fresh && a.state != rested {
			return Claim{}, false
		}
		if w.Is4() {
			c.V4 = w
		} else {
			c.V6 = w
		}
	}
	for _, f := range []*netip.Addr{&c.V4, &c.V6} {
		if f.IsValid() {
			continue
		}
		a, has := m.next(pool, f == &c.V4)
		switch {
		case a != nil:
			*f = a.addr
		case has:
			return Claim{}, false
		}
	}
	for _, a := range c.Addrs() {
		m.set(m.find(a), used, time.Time{})
	}
	return c, true
}

// figures counts as Stats does.
func (m *model) figures(p PoolConfig, prefix netip.Prefix, now time.Time) string {
	m.settle(now)
	size, inUse, cooling := 0, 0, 0
	for _, a := range m.addrs {
		if a.pool == p.Name && prefix.Contains(a.addr) {
			size++
			if !a.fresh && a.state == used {
				inUse++
			}
			if !a.fresh && (a.state == resting || a.state == due) {
				cooling++
			}
		}
	}
	return fmt.Sprintf("%d+%d/%d", inUse, cooling, size)
}

// TestModel compares long random sequences with the model: which address each claim gets,
// which claims fail, and what the figures are.
func TestModel(t *testing.T) {
	pools := []PoolConfig{
		poolOf("a", "10.0.0.0/29", "fd00::/125", "10.0.1.0/32", "10.0.2.4/30"),
		poolOf("b", "10.1.0.0/28"),
		poolOf("c", "fd01::/124", "fd02::/127"),
	}
	eachSeed(t, 40, func(t *testing.T, rng *rand.Rand) {
		keep := rng.IntN(8)
		p, err := newIPAM(pools, keep)
		must(t, err)
		m := newModel(pools, keep)
		now := t0
		for range 1500 {
			now = now.Add(time.Duration(rng.IntN(3)) * time.Second)
			pool := pools[rng.IntN(len(pools))].Name
			a := m.addrs[rng.IntN(len(m.addrs))]
			inUse := m.which(func(a *modelAddr) bool { return !a.fresh && a.state == used })
			switch op := rng.IntN(11); {
			case op == 10:
				pass := p.Due(now)
				if p.Rinsed(pass); !m.rinse(pass.Addrs, now) {
					t.Errorf("due: %v", pass.Addrs)
				}
			case op < 4:
				checkClaim(t, p, m, pool, nil, now)
			case op < 6:
				checkClaim(t, p, m, pool, []netip.Addr{a.addr}, now)
			case op < 9 && len(inUse) > 0:
				a := inUse[rng.IntN(len(inUse))]
				until := now.Add(time.Duration(rng.IntN(40)) * time.Second)
				p.Free(a.addr, until)
				m.set(a, resting, until)
			case len(inUse) > 0:
				a := inUse[rng.IntN(len(inUse))]
				m.settle(now)
				p.Unclaim(claimOf(a.addr), now)
				m.set(a, rested, time.Time{})
			}
			for i, x := range p.Stats(now) {
				for j, c := range x.CIDRs {
					want(t, fmt.Sprintf("%d+%d/%d", c.Used, c.Resting, c.Size), m.figures(pools[i], pools[i].CIDRs[j], now))
				}
			}
			if t.Failed() {
				return
			}
		}
	})
}

func claimOf(a netip.Addr) Claim {
	if a.Is4() {
		return Claim{V4: a}
	}
	return Claim{V6: a}
}

func checkClaim(t *testing.T, p *IPAM, m *model, pool string, wanted []netip.Addr, now time.Time) {
	t.Helper()
	var got Claim
	var err error
	if wanted == nil {
		available := p.Available(pool, now)
		got, err = p.Claim(pool, now)
		var full *ExhaustedError
		if errors.As(err, &full) && available == nil { // every exhausted family has due addresses
			if full.Due == 0 {
				t.Errorf("available, but %v", err)
			}
		} else if (available == nil) != (err == nil) {
			t.Errorf("available: %v, but claiming: %v", available, err)
		}
	} else {
		got, err = p.ClaimExact(pool, wanted, now)
	}
	expected, ok := m.claim(pool, wanted, now)
	if ok != (err == nil) || got != expected {
		t.Errorf("claim of %v in %s: got %s; want %s, %v", wanted, pool, show(got, err), show(expected, nil), ok)
	}
	var full *ExhaustedError
	if errors.As(err, &full) && full.Size != uint64(full.Used+full.Resting) {
		t.Errorf("%v: does not add up", err)
	}
}

// While the config changes, the agent restarts and the clock is set, no address has two
// owners, none is given out before its time or by a pool that does not have it, none is
// lost, and the figures add up.
func TestModelOfChanges(t *testing.T) {
	configs := [][]PoolConfig{
		{poolOf("a", "10.0.0.0/29")},
		{poolOf("a", "10.0.0.0/28"), poolOf("b", "10.0.1.0/29")},
		{poolOf("a", "10.0.0.0/30", "10.0.0.8/29"), poolOf("b", "10.0.0.4/30")},
		{poolOf("b", "10.0.0.0/29", "10.0.1.0/30"), poolOf("a", "10.0.1.8/29")},
		{poolOf("c", "10.0.0.0/23")},
		nil,
	}
	eachSeed(t, 40, func(t *testing.T, rng *rand.Rand) {
		config := configs[0]
		p, err := newIPAM(config, 3)
		must(t, err)
		owned := make(map[netip.Addr]bool)
		rests := make(map[netip.Addr]time.Time)
		now := t0
		for range 1500 {
			now = now.Add(time.Duration(rng.IntN(7)-2) * time.Second)
			rinse(p, now)
			switch op := rng.IntN(40); {
			case op < 20 && len(config) > 0:
				pool := config[rng.IntN(len(config))]
				c, err := p.Claim(pool.Name, now)
				if err != nil {
					checkExhausted(t, pool, owned, rests, now, err)
					break
				}
				if owned[c.V4] || rests[c.V4].After(now) || !has(pool, c.V4) {
					t.Errorf("%s gave out %s: owned %v, rests until %s, now %s", pool.Name, c.V4, owned[c.V4], rests[c.V4], now)
				}
				owned[c.V4] = true
				delete(rests, c.V4)
			case op < 37:
				for a := range owned { // any
					delete(owned, a)
					rests[a] = now.Add(time.Duration(rng.IntN(20)) * time.Second)
					p.Free(a, rests[a])
					break
				}
			case op < 39:
				config = configs[rng.IntN(len(configs))]
				must(t, p.Set(config, now))
			default:
				p, err = newIPAM(config, 3)
				must(t, err)
				restore(p, owned, rests)
			}
			checkFigures(t, p, config, owned, now)
			if p.Drained(now); t.Failed() {
				return
			}
			// A cooldown whose end was seen is over, even if the clock is set back.
			maps.DeleteFunc(rests, func(_ netip.Addr, until time.Time) bool { return !until.After(now) })
		}
	})
}

func has(p PoolConfig, a netip.Addr) bool {
	return slices.ContainsFunc(p.CIDRs, func(c netip.Prefix) bool {
		_, ok := newCIDR(c).offset(a)
		return ok && c.Contains(a)
	})
}

// checkExhausted checks, after a claim failed, that every address of the pool is in use or
// rests.
func checkExhausted(t *testing.T, pool PoolConfig, owned map[netip.Addr]bool, rests map[netip.Addr]time.Time, now time.Time, err error) {
	t.Helper()
	for _, c := range pool.CIDRs {
		for a := c.Addr(); c.Contains(a); a = a.Next() {
			if has(pool, a) && !owned[a] && !rests[a].After(now) {
				t.Errorf("%v, but %s is free (now %s)", err, a, now)
				return
			}
		}
	}
}

func restore(p *IPAM, owned map[netip.Addr]bool, rests map[netip.Addr]time.Time) {
	claimed := slices.Collect(maps.Keys(owned))
	var rested []Resting
	for a, until := range rests {
		rested = append(rested, Resting{a, until})
	}
	p.Restore(claimed, rested)
}

// checkFigures checks that as many addresses of each configured CIDR are used as have an
// owner.
func checkFigures(t *testing.T, p *IPAM, config []PoolConfig, owned map[netip.Addr]bool, now time.Time) {
	t.Helper()
	for i, x := range p.Stats(now) {
		for j, c := range x.CIDRs {
			if c.Used < 0 || c.Resting < 0 || uint64(c.Used+c.Resting) > c.Size {
				t.Errorf("%s %+v: does not add up", x.Pool, c)
			}
			if c.Draining {
				continue
			}
			n := 0
			for a := range owned {
				if has(PoolConfig{CIDRs: config[i].CIDRs[j : j+1]}, a) {
					n++
				}
			}
			if n != c.Used {
				t.Errorf("%s %s: %d in use, want %d", x.Pool, c.CIDR, c.Used, n)
			}
		}
	}
}

// eachSeed runs f with n seeds, or with the one of -seed. A failure names its seed.
func eachSeed(t *testing.T, n int, f func(*testing.T, *rand.Rand)) {
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = rand.Uint64()
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		f(t, rand.New(rand.NewPCG(seed, 0)))
		if t.Failed() {
			t.Fatalf("replay: go test -run '^%s$' -seed %d", t.Name(), seed)
		}
	}
}
