package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// No address is given out in a quarantine, and the error says until when. Behind the quarantine no address
// is given out before a pass, which is about all addresses that nobody has.
func TestQuarantine(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29"))
	p.Restore(addrs("10.0.0.1"), nil)
	p.Quarantine(at(0), at(30), nil, nil)
	_, err := p.Claim("a", at(29))
	var full *ExhaustedError
	if !errors.As(err, &full) || !full.NextFree.Equal(at(30)) {
		t.Errorf("a claim: %v", err)
	}
	want(t, err.Error(), "pool a gives out no address until "+at(30).Format(time.RFC3339)+": the ledger was lost, and only it knew which addresses rest")
	if _, err := p.ClaimExact("a", addrs("10.0.0.5"), at(29)); !errors.As(err, &full) {
		t.Errorf("an exact claim: %v", err)
	}
	if err := p.Available("a", at(29)); !errors.As(err, &full) {
		t.Errorf("available: %v", err)
	}
	if err := p.Available("a", at(30)); err != nil {
		t.Errorf("when it is over: %v", err)
	}
	if pass := p.Due(at(29)); len(pass.Lost) > 0 || !pass.Next.Equal(at(30)) {
		t.Errorf("a pass in the quarantine: %+v", pass)
	}
	if _, err := p.Claim("a", at(30)); !errors.As(err, &full) || full.Due == 0 {
		t.Errorf("a claim before the pass: %v", err)
	}
	pass := p.Due(at(30))
	if len(pass.Lost) != 1 || pass.Lost[0] != netip.MustParsePrefix("10.0.0.0/29") {
		t.Errorf("a pass: %+v", pass)
	}
	for a, unknown := range map[string]bool{"10.0.0.1": false, "10.0.0.2": true, "10.0.0.9": false} {
		if got := p.Unknown(pass.Lost, netip.MustParseAddr(a), at(30)); got != unknown {
			t.Errorf("%s: unknown %t", a, got)
		}
	}
	p.Rinsed(pass)
	if pass := p.Due(at(30)); len(pass.Lost) > 0 {
		t.Errorf("a second pass: %+v", pass)
	}
	want(t, show(p.Claim("a", at(30))), "10.0.0.2")
}

// Somebody else has an address of nobody's when the quarantine is over: the address rests on, because no
// pass has rinsed it.
func TestAddressOfOthersBehindQuarantine(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29"))
	p.Quarantine(at(0), at(30), nil, nil)
	pass := p.Due(at(30))
	p.RestOn(pass, addrs("10.0.0.1"), at(90))
	p.Rinsed(pass)
	want(t, show(p.Claim("a", at(30))), "10.0.0.2")
	var resting *AddrError
	if _, err := p.ClaimExact("a", addrs("10.0.0.1"), at(89)); !errors.As(err, &resting) || resting.Err != ErrResting {
		t.Errorf("claimed: %v", err)
	}
	if _, err := p.ClaimExact("a", addrs("10.0.0.1"), at(91)); !errors.As(err, &resting) || resting.Err != ErrDue {
		t.Errorf("claimed without a pass: %v", err)
	}
}

// Behind a lost ledger, a pass that was under way when a pool was tainted opens no pool. Once a later pass has, the pool is
// like any other: a taint keeps no claim, in this run and in the next one.
func TestTaintBehindQuarantine(t *testing.T) {
	a := netip.MustParsePrefix("10.0.0.0/29")
	p := mustNew(t, poolOf("a", a.String()))
	p.Quarantine(at(0), at(30), nil, nil)
	late := p.Due(at(31))
	p.Taint(a)
	p.Rinsed(late)
	var full *ExhaustedError
	if _, err := p.Claim("a", at(31)); !errors.As(err, &full) || full.Due == 0 || p.Behind(a) {
		t.Errorf("a claim before the pass: %v", err)
	}
	p.Rinsed(p.Due(at(32)))
	want(t, show(p.Claim("a", at(32))), "10.0.0.1")
	p.Taint(a)
	want(t, show(p.Claim("a", at(32))), "10.0.0.2")
	want(t, fmt.Sprint(p.Behind(a), p.Tainted("a"), len(p.Due(at(32)).Lost)), "true true 1")
	p = mustNew(t, poolOf("a", a.String()), poolOf("b", "10.1.0.0/29"))
	p.Quarantine(at(0), at(30), nil, []netip.Prefix{a})
	want(t, show(p.Claim("a", at(33))), "10.0.0.1")
	if _, err := p.Claim("b", at(33)); !errors.As(err, &full) {
		t.Errorf("a claim of a pool that no run has rinsed: %v", err)
	}
}

// A pool that comes back after the quarantine has begun gives out no address for its own
// cooldown, counted from the ledger's loss.
func TestQuarantineOfPoolThatComesBack(t *testing.T) {
	short, long := poolOf("a", "10.0.0.0/29"), poolOf("b", "10.1.0.0/29")
	short.Cooldown, long.Cooldown = 10*time.Second, 100*time.Second
	p := mustNew(t, short)
	p.Quarantine(at(20), at(30), nil, nil)
	must(t, p.Set([]PoolConfig{short, long}, at(40)))
	if err := p.Available("a", at(40)); err != nil {
		t.Error(err)
	}
	var full *ExhaustedError
	if _, err := p.Claim("b", at(119)); !errors.As(err, &full) || !full.NextFree.Equal(at(120)) {
		t.Errorf("a claim: %v", err)
	}
	p.Rinsed(p.Due(at(120)))
	want(t, show(p.Claim("b", at(120))), "10.1.0.1")
}

// A pool whose cooldown is raised after the quarantine stays open, also when the agent is
// started anew. A pool that is added then rests for its whole cooldown.
func TestRaisedCooldownAfterQuarantine(t *testing.T) {
	raised, late := poolOf("a", "10.0.0.0/29"), poolOf("b", "10.1.0.0/29")
	short := raised
	short.Cooldown, raised.Cooldown, late.Cooldown = 10*time.Second, 100*time.Second, 50*time.Second
	p := mustNew(t, short)
	p.Quarantine(at(20), at(30), nil, nil)
	must(t, p.Set([]PoolConfig{raised}, at(40)))
	p.Rinsed(p.Due(at(40)))
	want(t, show(p.Claim("a", at(40))), "10.0.0.1")
	first := map[netip.Prefix]time.Duration{}
	for _, c := range raised.CIDRs {
		cooldown, lost := p.First(c)
		if !lost || cooldown != short.Cooldown {
			t.Errorf("%s: first it rested %s (lost %t)", c, cooldown, lost)
		}
		first[c] = cooldown
	}
	p = mustNew(t, raised, late)
	if _, lost := p.First(raised.CIDRs[0]); lost {
		t.Error("an agent without a quarantine notes what a pool said first")
	}
	p.Quarantine(at(20), at(30), first, nil)
	p.Rinsed(p.Due(at(40)))
	want(t, show(p.Claim("a", at(40))), "10.0.0.1")
	var full *ExhaustedError
	if _, err := p.Claim("b", at(69)); !errors.As(err, &full) || !full.NextFree.Equal(at(70)) {
		t.Errorf("a claim: %v", err)
	}
}

// Adopt claims only free addresses, and Disown gives them back.
func TestAdopt(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/28"))
	p.Restore(addrs("10.0.0.1", "10.9.9.9"), []Resting{{addrs("10.0.0.2")[0], at(30)}, {addrs("10.0.0.3")[0], at(10)}, {addrs("10.8.8.8")[0], at(30)}})
	rinse(p, at(20))
	some := addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.9.9.9", "10.8.8.8", "10.7.7.7")
	claimed := p.Adopt(some, at(20))
	want(t, fmt.Sprint(claimed), "[10.0.0.3 10.0.0.4 10.7.7.7]")
	if again := p.Adopt(claimed, at(20)); len(again) > 0 {
		t.Errorf("adopted twice: %v", again)
	}
	want(t, show(p.Claim("a", at(20))), "10.0.0.5")
	p.Disown(claimed, at(20))
	if again := p.Adopt(claimed, at(20)); len(again) != len(claimed) {
		t.Errorf("after giving back: %v", again)
	}
	want(t, p.PoolOf(some[0])+p.PoolOf(some[6]), "a")
}

// A pool's route was missing, or a reload has brought the pool. The next pass finds out what the kernel
// remembers of addresses that nobody has. The pool gives out addresses meanwhile.
func TestTainted(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29"))
	if p.Tainted("a") {
		t.Error("tainted at the start")
	}
	p.Taint(netip.MustParsePrefix("10.0.0.0/29"))
	must(t, p.Set([]PoolConfig{poolOf("a", "10.0.0.0/29"), poolOf("b", "10.1.0.0/29")}, at(0)))
	for _, pool := range []string{"", "a", "b"} {
		if !p.Tainted(pool) {
			t.Errorf("pool %q is not tainted", pool)
		}
	}
	want(t, show(p.Claim("a", at(0))), "10.0.0.1")
	pass := p.Due(at(0))
	if len(pass.Lost) != 2 || !p.Unknown(pass.Lost, netip.MustParseAddr("10.0.0.2"), at(0)) || p.Unknown(pass.Lost, netip.MustParseAddr("10.0.0.1"), at(0)) {
		t.Errorf("a pass: %+v", pass)
	}
	p.Rinsed(pass)
	if p.Tainted("a") || p.Tainted("b") || len(p.Due(at(0)).Lost) > 0 {
		t.Error("tainted behind the pass")
	}
}

// A pool's route is missing while a pass is under way. The addresses that are due stay due.
func TestTaintDuringAPass(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29"))
	p.Restore(nil, []Resting{{netip.MustParseAddr("10.0.0.1"), at(1)}})
	pass := p.Due(at(2))
	p.Taint(netip.MustParsePrefix("10.0.0.0/29"))
	p.Rinsed(pass)
	var not *AddrError
	if _, err := p.ClaimExact("a", addrs("10.0.0.1"), at(2)); !errors.As(err, &not) || not.Err != ErrDue {
		t.Errorf("claimed: %v", err)
	}
}
