package ipam

import (
	"fmt"
	"testing"
	"time"
)

// An address without a cooldown is free without a pass. An address with a cooldown is given to
// nobody until the address is rinsed. A pass that fails or is late frees no address wrongly.
func TestDueUntilRinsed(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30"))
	p.Claim("a", t0)
	p.Claim("a", t0)
	p.Free(addrs("10.0.0.1")[0], time.Time{})
	want(t, show(p.Claim("a", at(1))), "10.0.0.1")
	p.Free(addrs("10.0.0.1")[0], at(30))
	p.Free(addrs("10.0.0.1")[0], time.Time{}) // freeing it again does not end its rest
	p.Free(addrs("10.0.0.2")[0], at(40))
	pass := p.Due(at(30).Add(-1))
	want(t, fmt.Sprint(pass.Addrs, pass.Next.Equal(at(30))), "[] true")
	pass = p.Due(at(30))
	want(t, fmt.Sprint(pass.Addrs, pass.Next.Equal(at(40))), "[10.0.0.1] true")
	want(t, fmt.Sprint(p.Available("a", at(30))), "<nil>") // because it could claim after a pass
	want(t, show(p.Claim("a", at(30))), "pool a has no free IPv4 address: 2 in all, 0 in use, 2 in cooldown, 1 of them only until the node has forgotten the last pods' traffic")
	set(t, p, 30, poolOf("a", "10.0.0.0/30", "fd00::/64")) // the address stays due in the new layout
	again := p.Due(at(30))
	want(t, fmt.Sprint(again.Addrs), "[10.0.0.1]")
	p.Rinsed(pass)
	p.Restore(addrs("10.0.0.1"), nil) // the ledger has an owner meanwhile
	p.Rinsed(again)
	want(t, figures(p, at(30)), "a 10.0.0.0/30 1+1/2 fd00::/64 0+0/18446744073709551614")
	pass = p.Due(at(50))
	p.Rinsed(pass)
	want(t, fmt.Sprint(pass.Addrs, pass.Next.IsZero()), "[10.0.0.2] true")
	want(t, show(p.Claim("a", at(50))), "10.0.0.2 fd00::1")
}

// A pool is not available if one family's addresses are due and the other's exhausted.
func TestAvailableOfTwoFamilies(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.1/32", "fd00::1/128"))
	p.Claim("a", t0)
	p.Free(addrs("10.0.0.1")[0], at(1))
	want(t, fmt.Sprint(p.Available("a", at(2))), "pool a has no free IPv6 address: 1 in all, 1 in use, 0 in cooldown")
	p.Free(addrs("fd00::1")[0], at(1))
	want(t, fmt.Sprint(p.Available("a", at(2))), "<nil>")
}

// An address that is claimed while its CIDR is tainted, or in use when it becomes so, is due if it is free
// without a rest: the pass that has asked the kernel left it out.
func TestTaintOfUsed(t *testing.T) {
	for _, test := range []struct {
		name  string
		free  func(*IPAM, Claim)
		taint bool // while the address is in use; or before its claim
	}{
		{"claim given back", func(p *IPAM, c Claim) { p.Unclaim(c, at(2)) }, true},
		{"no rest", func(p *IPAM, c Claim) { p.Free(c.V4, time.Time{}) }, true},
		{"claim given back, tainted before", func(p *IPAM, c Claim) { p.Unclaim(c, at(2)) }, false},
	} {
		p := mustNew(t, poolOf("a", "10.0.0.1/32"))
		cidr := prefixes("10.0.0.1/32")[0]
		if !test.taint {
			p.Taint(cidr)
		}
		c, _ := p.Claim("a", t0)
		if test.taint {
			p.Taint(cidr)
		}
		p.Set([]PoolConfig{poolOf("a", "10.0.0.1/32"), poolOf("b", "10.0.1.0/24")}, at(1)) // the mark stays
		pass := p.Due(at(1))
		p.Rinsed(pass)
		test.free(p, c)
		if got := p.Due(at(2)).Addrs; len(got) != 1 {
			t.Errorf("%s: due are %v", test.name, got)
		}
		rinse(p, at(3))
		want(t, show(p.Claim("a", at(3))), "10.0.0.1")
		p.Unclaim(c, at(4))
		if got := p.Due(at(4)).Addrs; len(got) != 0 {
			t.Errorf("%s: due are %v behind a claim without a taint", test.name, got)
		}
	}
}

// If the kernel may remember traffic of free addresses, a pass asks it. An address that is claimed before, or in use,
// is doubtful until the kernel has forgotten what it remembers of it.
func TestTaint(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30", "10.0.1.0/31"))
	for _, a := range addrs("10.0.0.1", "10.0.0.2", "10.0.1.0", "10.0.1.1") {
		p.ClaimExact("a", addrs(a.String()), t0)
		p.Free(a, at(1))
	}
	rinse(p, at(2))
	p.ClaimExact("a", addrs("10.0.0.2"), at(2))
	p.Taint(prefixes("10.0.0.0/30")[0])
	pass := p.Due(at(2))
	want(t, fmt.Sprint(pass.Addrs, pass.Lost), "[] [10.0.0.0/30]")
	p.ClaimExact("a", addrs("10.0.0.1"), at(2))
	p.ClaimExact("a", addrs("10.0.1.0"), at(2))
	all := addrs("10.0.0.1", "10.0.0.2", "10.0.1.0", "10.0.1.1", "192.0.2.1")
	want(t, fmt.Sprint(p.Doubtful(all)), "[10.0.0.1 10.0.0.2]")
	before := p.Taints()
	p.Taint(prefixes("10.0.1.0/31")[0])
	p.Trust(all, before) // too early
	want(t, fmt.Sprint(p.Doubtful(all)), "[10.0.0.1 10.0.0.2 10.0.1.0]")
	p.Trust(all, p.Taints())
	want(t, fmt.Sprint(p.Doubtful(all)), "[]")
	p.Settle(all[:1])
	p.Taint(prefixes("10.0.0.0/30")[0])
	p.Settle(all[:2]) // too late
	want(t, fmt.Sprint(p.Doubtful(all)), "[10.0.0.2]")
	must(t, p.Set([]PoolConfig{poolOf("a", "10.0.0.0/29", "10.0.1.0/31")}, at(2))) // settled addresses stay settled
	p.Taint(prefixes("10.0.0.0/29")[0])
	want(t, fmt.Sprint(p.Doubtful(all)), "[10.0.0.2]")
	must(t, p.Set([]PoolConfig{poolOf("a", "10.0.0.0/30", "10.0.1.0/31")}, at(2)))
	p.Rinsed(pass) // too early for all of it
	want(t, fmt.Sprint(p.Tainted("a"), len(p.Due(at(2)).Lost)), "true 2")
	rinse(p, at(2))
	want(t, fmt.Sprint(p.Tainted("a"), len(p.Due(at(2)).Lost)), "false 0")
}
