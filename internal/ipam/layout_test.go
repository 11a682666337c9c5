package ipam

import (
	"fmt"
	"net/netip"
	"testing"
)

func prefixes(s ...string) (ps []netip.Prefix) {
	for _, p := range s {
		ps = append(ps, netip.MustParsePrefix(p))
	}
	return ps
}

func set(t *testing.T, p *IPAM, seconds int, pools ...PoolConfig) {
	t.Helper()
	must(t, p.Set(pools, at(seconds)))
}

func TestAddedCIDRIsUsedNext(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/31"))
	p.Claim("a", t0)
	p.Claim("a", t0)
	p.Free(addrs("10.0.0.1")[0], at(30))
	set(t, p, 0, poolOf("a", "10.0.0.0/31", "10.0.1.0/32", "fd00::/64"))
	want(t, show(p.Claim("a", at(40))), "10.0.1.0 fd00::1")
	rinse(p, at(40))
	want(t, show(p.Claim("a", at(40))), "10.0.0.1 fd00::2")
	want(t, figures(p, at(40)), "a 10.0.0.0/31 2+0/2 10.0.1.0/32 1+0/1 fd00::/64 2+0/18446744073709551614")
}

func TestRemovedCIDRDrains(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30", "10.0.1.0/30"))
	c, _ := p.Claim("a", t0)
	set(t, p, 0, poolOf("a", "10.0.1.0/30"))
	want(t, figures(p, t0), "a 10.0.1.0/30 0+0/2 !10.0.0.0/30 1+0/2")
	want(t, show(p.Claim("a", t0)), "10.0.1.1")
	want(t, show(p.ClaimExact("a", addrs("10.0.0.2"), t0)), "pool a: requested address 10.0.0.2: not in the pool")
	want(t, fmt.Sprint(p.Drained(at(99))), "[]")
	want(t, p.table.find(c.V4).pool.name, "a")
	p.Free(c.V4, at(30))
	want(t, fmt.Sprint(p.Drained(at(30).Add(-1))), "[]")
	want(t, fmt.Sprint(p.Drained(at(30))), "[]")
	rinse(p, at(30))
	want(t, fmt.Sprint(p.Drained(at(30))), "[10.0.0.0/30]")
	want(t, fmt.Sprint(p.Drained(at(30))), "[]")
	want(t, figures(p, at(30)), "a 10.0.1.0/30 1+0/2")
}

func TestRemovedPoolDrainsAndComesBack(t *testing.T) {
	a, b := poolOf("a", "10.0.0.0/30"), poolOf("b", "10.0.1.0/30", "fd00::/126")
	p := mustNew(t, a, b)
	p.Claim("b", t0)
	p.Claim("b", t0)
	p.Free(addrs("10.0.1.1")[0], at(30))
	set(t, p, 0, a)
	want(t, figures(p, t0), "a 10.0.0.0/30 0+0/2 b !10.0.1.0/30 1+1/2 !fd00::/126 2+0/3")
	want(t, show(p.Claim("b", t0)), `pool "b": no such pool any more: it is draining`)
	set(t, p, 0, b, a)
	want(t, figures(p, at(10)), "b 10.0.1.0/30 1+1/2 fd00::/126 2+0/3 a 10.0.0.0/30 0+0/2")
	want(t, show(p.Claim("b", at(30).Add(-1))), "pool b has no free IPv4 address: 2 in all, 1 in use, 1 in cooldown, the first of them until 2026-01-02T03:04:35Z")
	rinse(p, at(30))
	want(t, show(p.Claim("b", at(30))), "10.0.1.1 fd00::3")
	want(t, fmt.Sprint(p.Drained(at(99))), "[]")
}

// Addresses in use and resting addresses keep their state, whatever CIDR and pool they are
// in after a change.
func TestCIDRChangesShape(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29"))
	for range 6 {
		p.Claim("a", t0)
	}
	for i, a := range addrs("10.0.0.6", "10.0.0.5", "10.0.0.2", "10.0.0.1") {
		p.Free(a, at(i))
	}
	p.Free(addrs("10.0.0.1")[0], at(100))
	pass := p.Due(at(10))
	want(t, fmt.Sprint(pass.Addrs, pass.Next.Equal(at(100))), "[10.0.0.6 10.0.0.5 10.0.0.2] true")

	// The CIDR is smaller, and its pool has another name: the rest of the old CIDR drains
	// around it.
	set(t, p, 0, poolOf("b", "10.0.0.4/30"))
	want(t, figures(p, at(10)), "b 10.0.0.4/30 0+2/2 a !10.0.0.0/29 1+2/6") // neither CIDR can give 10.0.0.4 out
	p.Rinsed(pass)                                                          // the pass began before the change
	want(t, figures(p, at(10)), "b 10.0.0.4/30 0+2/2 a !10.0.0.0/29 1+2/6")
	rinse(p, at(10))
	want(t, show(p.Claim("b", at(10))), "10.0.0.6")
	want(t, show(p.Claim("b", at(10))), "10.0.0.5")
	want(t, show(p.Claim("b", at(10))), "pool b has no free IPv4 address: 2 in all, 2 in use, 0 in cooldown")

	// The CIDR is larger: the CIDR that drained lies in it now, and is no CIDR of its own any
	// more.
	set(t, p, 0, poolOf("c", "10.0.0.0/28"))
	want(t, figures(p, at(10)), "c 10.0.0.0/28 4+1/14")
	want(t, fmt.Sprint(p.Drained(at(10))), "[10.0.0.0/29 10.0.0.4/30]")
	for _, a := range []string{"7", "8", "9", "10", "11", "12", "13", "14", "2"} {
		want(t, show(p.Claim("c", at(10))), "10.0.0."+a)
	}
	want(t, show(p.Claim("c", at(99))), "pool c has no free IPv4 address: 14 in all, 13 in use, 1 in cooldown, the first of them until 2026-01-02T03:05:45Z")
	p.Free(addrs("10.0.0.7")[0], at(99))

	// 10.0.0.7 is the broadcast address of the new CIDR.
	set(t, p, 0, poolOf("c", "10.0.0.0/29"))
	want(t, figures(p, at(98)), "c 10.0.0.0/29 5+1/6 !10.0.0.0/28 7+0/14")
}

func TestOneThatComesBackIsNotTold(t *testing.T) {
	small, large := poolOf("a", "10.0.0.0/30"), poolOf("a", "10.0.0.0/29")
	p := mustNew(t, small)
	set(t, p, 0, large)
	set(t, p, 0, small)
	want(t, fmt.Sprint(p.Drained(t0)), "[10.0.0.0/29]")
	set(t, p, 0, large)
	p.Drain("a", small.CIDRs[0], 0)
	want(t, fmt.Sprint(p.Drained(t0)), "[10.0.0.0/30]")
	want(t, figures(p, t0), "a 10.0.0.0/29 0+0/6")
}

// The agent starts with another config than before, and knows from the ledger's owners which
// CIDRs there were.
func TestRestartAfterAChange(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30"))
	p.Drain("a", prefixes("10.0.0.0/30")[0], 0) // known
	p.Drain("old", prefixes("10.1.0.0/24")[0], 0)
	p.Drain("old", prefixes("10.2.0.0/24")[0], 0)
	p.Restore(addrs("10.1.0.7", "10.3.0.7"), []Resting{{addrs("10.3.0.8")[0], at(30)}, {addrs("10.3.0.9")[0], at(1)}})
	want(t, figures(p, t0), "a 10.0.0.0/30 0+0/2 old !10.1.0.0/24 1+0/254 !10.2.0.0/24 0+0/254")
	want(t, fmt.Sprint(p.Drained(t0)), "[10.2.0.0/24]")
	want(t, figures(p, t0), "a 10.0.0.0/30 0+0/2 old !10.1.0.0/24 1+0/254")

	// A new config has the CIDR of addresses that were in no CIDR before.
	set(t, p, 0, poolOf("b", "10.3.0.0/24"))
	want(t, figures(p, at(2)), "b 10.3.0.0/24 1+2/254 old !10.1.0.0/24 1+0/254 a !10.0.0.0/30 0+0/2")
	p.Free(addrs("10.1.0.7")[0], at(2))
	rinse(p, at(2))
	want(t, figures(p, at(2)), "b 10.3.0.0/24 1+1/254 old !10.1.0.0/24 0+0/254 a !10.0.0.0/30 0+0/2")
	want(t, fmt.Sprint(p.Drained(at(2))), "[10.1.0.0/24 10.0.0.0/30]")
}

func TestStrays(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30"))
	p.Restore(addrs("10.9.0.1", "10.9.0.2", "10.9.0.3"), nil)
	p.Free(addrs("10.9.0.2")[0], at(30))
	p.Restore(nil, []Resting{{addrs("10.9.0.2")[0], at(20)}, {addrs("10.9.0.1")[0], at(20)}})
	p.Unclaim(Claim{V4: addrs("10.9.0.3")[0]}, t0)
	p.Drained(at(30).Add(-1))
	want(t, fmt.Sprint(len(p.strays)), "2")
	p.Drained(at(30))
	want(t, fmt.Sprint(len(p.strays)), "1")
	p.Free(addrs("10.7.0.1")[0], at(40))
	set(t, p, 39, poolOf("a", "10.0.0.0/31"))
	want(t, fmt.Sprint(len(p.strays)), "2")
	set(t, p, 40, poolOf("a", "10.0.0.0/30"))
	want(t, fmt.Sprint(len(p.strays)), "1")
	set(t, p, 40, poolOf("a", "10.9.0.0/29"))
	want(t, figures(p, at(40)), "a 10.9.0.0/29 1+0/6 !10.0.0.0/30 0+0/2")
}

func TestSetRefusesAndChangesNothing(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30"))
	p.Claim("a", t0)
	if err := p.Set([]PoolConfig{poolOf("b", "10.0.1.0/24", "10.0.1.0/25")}, t0); err == nil {
		t.Fatal("no error")
	}
	want(t, figures(p, t0), "a 10.0.0.0/30 1+0/2")
}

func TestSetKeepsNothingOfTheCallers(t *testing.T) {
	cfg := poolOf("a", "10.0.0.0/30")
	p := mustNew(t, cfg)
	cfg.CIDRs[0] = prefixes("10.5.0.0/24")[0]
	set(t, p, 0, cfg)
	want(t, figures(p, t0), "a 10.5.0.0/24 0+0/254 !10.0.0.0/30 0+0/2")
}
