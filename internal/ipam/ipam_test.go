package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

var must = nettest.Must

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at returns t0 plus some seconds.
func at(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }

func poolOf(name string, cidrs ...string) PoolConfig {
	p := PoolConfig{Name: name, Cooldown: 30 * time.Second}
	for _, c := range cidrs {
		p.CIDRs = append(p.CIDRs, netip.MustParsePrefix(c))
	}
	return p
}

func mustNew(t testing.TB, pools ...PoolConfig) *IPAM {
	t.Helper()
	p, err := New(pools)
	must(t, err)
	return p
}

func addrs(s ...string) (as []netip.Addr) {
	for _, a := range s {
		as = append(as, netip.MustParseAddr(a))
	}
	return as
}

// rinse ends a pass for all due addresses.
func rinse(p *IPAM, now time.Time) {
	p.Rinsed(p.Due(now))
}

// show returns a claim's addresses, or its error, as text.
func show(c Claim, err error) string {
	if err != nil {
		return err.Error()
	}
	var s []string
	for _, a := range c.Addrs() {
		s = append(s, a.String())
	}
	return strings.Join(s, " ")
}

func want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// figures prints Stats: "default 10.0.0.0/30 1+0/2" is used+resting/size, with
// ! if draining.
func figures(p *IPAM, now time.Time) string {
	var s []string
	for _, x := range p.Stats(now) {
		s = append(s, x.Pool)
		for _, c := range x.CIDRs {
			mark := ""
			if c.Draining {
				mark = "!"
			}
			s = append(s, fmt.Sprintf("%s%s %d+%d/%d", mark, c.CIDR, c.Used, c.Resting, c.Size))
		}
	}
	return strings.Join(s, " ")
}

func TestClaimsFreshOnesInOrderThenTheLongestRested(t *testing.T) {
	p := mustNew(t, poolOf("default", "10.0.0.0/30", "fd00::/64", "10.0.9.0/31"))
	now := at(0)
	claim := func() string { c, err := p.Claim("", now); return show(c, err) }
	want(t, claim(), "10.0.0.1 fd00::1")
	want(t, claim(), "10.0.0.2 fd00::2")
	p.Free(addrs("10.0.0.2")[0], at(30))
	p.Free(addrs("10.0.0.1")[0], at(31))
	now = at(60)
	rinse(p, now)
	want(t, claim(), "10.0.9.0 fd00::3") // nobody had it, although others have rested
	want(t, claim(), "10.0.9.1 fd00::4")
	want(t, claim(), "10.0.0.2 fd00::5")
	want(t, claim(), "10.0.0.1 fd00::6")
	want(t, claim(), "pool default has no free IPv4 address: 4 in all, 4 in use, 0 in cooldown")
	want(t, figures(p, now), "default 10.0.0.0/30 2+0/2 fd00::/64 6+0/18446744073709551614 10.0.9.0/31 2+0/2")
}

func TestCooldownIsNeverCutShort(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30"))
	for range 2 {
		if _, err := p.Claim("a", at(0)); err != nil {
			t.Fatal(err)
		}
	}
	// The cooldown was made shorter between these two calls.
	p.Free(addrs("10.0.0.1")[0], at(5))
	p.Free(addrs("10.0.0.1")[0], at(300)) // freed twice: the later end counts
	p.Free(addrs("10.0.0.2")[0], at(12))
	p.Free(addrs("10.0.0.2")[0], at(10))
	_, err := p.Claim("a", at(12).Add(-1))
	want(t, fmt.Sprint(err), "pool a has no free IPv4 address: 2 in all, 0 in use, 2 in cooldown, the first of them until 2026-01-02T03:04:17Z")
	var full *ExhaustedError
	if !errors.As(err, &full) || !full.NextFree.Equal(at(12)) {
		t.Errorf("NextFree: got %+v, want %s", full, at(12))
	}
	want(t, fmt.Sprint(p.Available("a", at(11))), err.Error())
	want(t, figures(p, at(11)), "a 10.0.0.0/30 0+2/2")
	want(t, fmt.Sprint(p.Available("", at(12))), "<nil>")
	want(t, figures(p, at(12)), "a 10.0.0.0/30 0+2/2")
	rinse(p, at(12))
	want(t, figures(p, at(12)), "a 10.0.0.0/30 0+1/2")
	want(t, show(p.Claim("a", at(12))), "10.0.0.2")
	want(t, show(p.Claim("a", at(300).Add(-1))), "pool a has no free IPv4 address: 2 in all, 1 in use, 1 in cooldown, the first of them until 2026-01-02T03:09:05Z")
	rinse(p, at(300))
	want(t, show(p.Claim("a", at(300))), "10.0.0.1")
}

func TestNothingIsClaimedOnError(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/24", "fd00::1/128"))
	want(t, show(p.Claim("a", t0)), "10.0.0.1 fd00::1")
	want(t, show(p.Claim("a", t0)), "pool a has no free IPv6 address: 1 in all, 1 in use, 0 in cooldown")
	want(t, show(p.ClaimExact("a", addrs("10.0.0.9"), t0)), "pool a has no free IPv6 address: 1 in all, 1 in use, 0 in cooldown")
	want(t, show(p.ClaimExact("a", addrs("10.0.0.9", "fd00::1"), t0)), "pool a: requested address fd00::1: in use")
	want(t, figures(p, t0), "a 10.0.0.0/24 1+0/254 fd00::1/128 1+0/1")
}

func TestClaimExact(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29", "fd00::/48"), poolOf("b", "10.9.0.0/24"))
	p.Free(addrs("10.0.0.6")[0], at(30))
	for _, tt := range []struct {
		pool   string
		addrs  []netip.Addr
		want   string
		wantIs error
	}{
		{"a", addrs("10.0.0.2"), "10.0.0.2 fd00::1", nil},
		{"a", addrs("fd00::2"), "10.0.0.1 fd00::2", nil},
		{"a", nil, "10.0.0.3 fd00::3", nil}, // over 10.0.0.2 and fd00::2
		{"", addrs("fd00::ffff:0:0:1", "10.0.0.5"), "10.0.0.5 fd00::ffff:0:0:1", nil},
		{"a", addrs("10.0.0.2"), "pool a: requested address 10.0.0.2: in use", ErrTaken},
		{"a", addrs("10.0.0.6"), "pool a: requested address 10.0.0.6: in cooldown until 2026-01-02T03:04:35Z", ErrResting},
		{"a", addrs("10.0.0.0"), "pool a: requested address 10.0.0.0: not an address that can be given out", ErrUnfit},
		{"a", addrs("10.0.0.7"), "pool a: requested address 10.0.0.7: not an address that can be given out", ErrUnfit},
		{"a", addrs("fd00:0:0:1::1"), "pool a: requested address fd00:0:0:1::1: not an address that can be given out", ErrUnfit},
		{"a", addrs("10.0.0.8"), "pool a: requested address 10.0.0.8: not in the pool", ErrOutside},
		{"a", addrs("9.255.255.255"), "pool a: requested address 9.255.255.255: not in the pool", ErrOutside},
		{"a", addrs("10.9.0.1"), "pool a: requested address 10.9.0.1: not in the pool", ErrOutside},
		{"b", addrs("fd00::9"), "pool b: requested address fd00::9: not in the pool", ErrOutside},
		{"a", addrs("fd00::9%eth0"), "pool a: requested address fd00::9%eth0: not in the pool", ErrOutside},
		{"a", []netip.Addr{{}}, "pool a: requested address invalid IP: not in the pool", ErrOutside},
		{"a", addrs("10.0.0.4", "10.0.0.4"), "pool a: requested address 10.0.0.4: a second address of one family", ErrTwice},
		{"c", addrs("10.0.0.4"), `pool "c": no such pool`, ErrUnknownPool},
		{"a", addrs("::ffff:10.0.0.4"), "10.0.0.4 fd00::4", nil},
	} {
		c, err := p.ClaimExact(tt.pool, tt.addrs, at(0))
		want(t, show(c, err), tt.want)
		if !errors.Is(err, tt.wantIs) {
			t.Errorf("%v: not %v", err, tt.wantIs)
		}
	}
	_, err := p.ClaimExact("a", addrs("10.0.0.6"), at(30))
	want(t, fmt.Sprint(err), "pool a: requested address 10.0.0.6: not free until the node has forgotten the last pod's traffic")
	if !errors.Is(err, ErrDue) {
		t.Errorf("%v: not %v", err, ErrDue)
	}
	rinse(p, at(30))
	want(t, show(p.ClaimExact("a", addrs("10.0.0.6"), at(30))), "10.0.0.6 fd00::5")
	want(t, show(p.Claim("a", at(30))), "pool a has no free IPv4 address: 6 in all, 6 in use, 0 in cooldown")
}

func TestUnclaimedOnesAreFreeAndLast(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/30", "fd00::4/126"))
	x, _ := p.Claim("a", at(0))
	p.Claim("a", at(0))
	p.Free(addrs("10.0.0.2")[0], at(5))
	p.Free(addrs("fd00::6")[0], at(5))
	rinse(p, at(6))
	p.Unclaim(x, at(6))
	p.Unclaim(x, at(6)) // it is not in use any more
	want(t, figures(p, at(6)), "a 10.0.0.0/30 0+0/2 fd00::4/126 0+0/3")
	want(t, show(p.Claim("a", at(6))), "10.0.0.2 fd00::7")
	want(t, show(p.Claim("a", at(6))), "10.0.0.1 fd00::6")
	p.Free(addrs("10.0.0.1")[0], at(60))
	p.Unclaim(Claim{V4: addrs("10.0.0.1")[0]}, at(7))
	want(t, figures(p, at(7)), "a 10.0.0.0/30 1+1/2 fd00::4/126 2+0/3")
}

func TestRequestedOutOfTheMiddleOfTheRested(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29"))
	for range 6 {
		p.Claim("a", at(0))
	}
	for i, a := range addrs("10.0.0.3", "10.0.0.1", "10.0.0.6", "10.0.0.2") {
		p.Free(a, at(i))
		rinse(p, at(10))
	}
	// Requesting an address again and again leaves nothing behind.
	for i := range 1000 {
		want(t, show(p.ClaimExact("a", addrs("10.0.0.1"), at(10+i))), "10.0.0.1")
		p.Free(addrs("10.0.0.1")[0], at(10+i))
		rinse(p, at(10+i))
	}
	if s := p.byName["a"].v4; len(s.slots) != lists+6 || len(s.ends.queue)+len(s.ends.heap) > 1 {
		t.Errorf("%d slots, %d+%d ends; want 8 and at most 1", len(s.slots), len(s.ends.queue), len(s.ends.heap))
	}
	for _, a := range []string{"10.0.0.3", "10.0.0.6", "10.0.0.2", "10.0.0.1"} {
		want(t, show(p.Claim("a", at(2000))), a)
	}
}

func TestRemembersOnlySoMany(t *testing.T) {
	p, err := newIPAM([]PoolConfig{poolOf("a", "fd00::/64")}, 3)
	must(t, err)
	for range 10_000 {
		c, err := p.Claim("a", t0)
		must(t, err)
		p.Free(c.V6, time.Time{})
	}
	if n := len(p.byName["a"].v6.slots); n != lists+4 {
		t.Errorf("%d slots, want 6: the lists, 3 that are remembered and the 1 beyond them", n)
	}
	want(t, show(p.Claim("a", t0)), "fd00::1") // 10,000 is a multiple of 4
}

func TestRestore(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/29", "10.7.0.0/32"))
	rests := []Resting{
		{addrs("10.0.0.3")[0], at(-50)}, {addrs("10.0.0.1")[0], at(-40)}, {addrs("10.0.0.2")[0], at(30)},
		{addrs("10.0.0.4")[0], at(-50)}, // claimed since
		{addrs("192.0.2.1")[0], at(30)},
	}
	for range 2 { // again changes nothing
		p.Restore(addrs("10.0.0.4", "10.0.0.5", "192.0.2.2"), rests)
		want(t, figures(p, at(0)), "a 10.0.0.0/29 2+3/6 10.7.0.0/32 0+0/1")
	}
	want(t, show(p.Claim("a", at(0))), "10.0.0.6")
	want(t, show(p.Claim("a", at(0))), "10.7.0.0")
	_, err := p.Claim("a", at(0))
	want(t, fmt.Sprint(err), "pool a has no free IPv4 address: 7 in all, 4 in use, 3 in cooldown, 2 of them only until the node has forgotten the last pods' traffic")
	rinse(p, at(0))
	for _, a := range []string{"10.0.0.3", "10.0.0.1"} {
		want(t, show(p.Claim("a", at(0))), a)
	}
	want(t, show(p.Claim("a", at(0))), "pool a has no free IPv4 address: 7 in all, 6 in use, 1 in cooldown, the first of them until 2026-01-02T03:04:35Z")
	p.Restore(addrs("10.0.0.2"), nil) // the ledger knows better
	want(t, figures(p, at(60)), "a 10.0.0.0/29 6+0/6 10.7.0.0/32 1+0/1")
}

func TestPoolAndCooldown(t *testing.T) {
	a, b := poolOf("a", "10.0.0.0/24"), poolOf("b", "10.0.1.0/24", "fd00::/64")
	b.Cooldown = time.Minute
	p := mustNew(t, a, b)
	for addr, pool := range map[string]string{
		"10.0.0.0": "a", "10.0.1.255": "b", "fd00::1": "b", "10.0.2.0": "", "9.9.9.9": "", "fc00::": "", "fd00:0:0:1::": "",
	} {
		got := ""
		if c := p.table.find(netip.MustParseAddr(addr)); c != nil {
			got = c.pool.name
		}
		if got != pool {
			t.Errorf("pool of %s: %q, want %q", addr, got, pool)
		}
	}
	for name, d := range map[string]time.Duration{"10.0.0.1": a.Cooldown, "fd00::9": b.Cooldown, "10.0.2.9": Unknown, "x": 0} {
		wantCooldown(t, p, hold.Name{Space: Space, Name: name}, d)
	}
	wantCooldown(t, p, hold.Name{Space: "port", Name: "10.0.0.1"}, 0)
	want(t, show(mustNew(t).Claim("", t0)), `pool "": no such pool`)
}

// wantCooldown checks how long a name rests; Unknown: no pool's cooldown is known.
func wantCooldown(t *testing.T, p *IPAM, n hold.Name, want time.Duration) {
	t.Helper()
	got, known := p.Cooldown(n)
	if !known {
		got = Unknown
	}
	if got != want {
		t.Errorf("cooldown of %s: %s, want %s", n.Name, got, want)
	}
}

// An address whose CIDR was taken out of the config rests for the cooldown that its pool had
// then, whatever the cooldown of that pool and of others is now.
func TestCooldownOfRemovedCIDR(t *testing.T) {
	a, b := poolOf("a", "10.0.0.0/24", "10.0.1.0/24"), poolOf("b", "10.0.2.0/24")
	a.Cooldown, b.Cooldown = time.Minute, time.Millisecond
	p := mustNew(t, a, b)
	of := func(addr string, want time.Duration) {
		t.Helper()
		wantCooldown(t, p, Name(addrs(addr)[0]), want)
	}
	p.Restore(addrs("10.0.0.1", "10.0.1.1", "10.0.2.1"), nil)
	less := poolOf("a", "10.0.1.0/24")
	less.Cooldown = time.Second
	set(t, p, 0, less, b)
	of("10.0.0.1", time.Minute)
	of("10.0.1.1", time.Second)
	set(t, p, 0, b)
	of("10.0.0.1", time.Minute)
	of("10.0.1.1", time.Second)
	of("10.0.2.1", time.Millisecond)
	p.Drain("old", prefixes("10.3.0.0/24")[0], time.Hour)
	p.Drain("older", prefixes("10.4.0.0/24")[0], Unknown)
	of("10.3.0.1", time.Hour)
	of("10.4.0.1", Unknown)
	set(t, p, 0, b, less)
	of("10.1.0.1", Unknown) // of no pool
	of("10.0.1.1", time.Second)
	of("10.0.0.1", time.Minute)
}

func TestClaimAddrs(t *testing.T) {
	c := Claim{V4: addrs("10.0.0.1")[0], V6: addrs("fd00::1")[0]}
	if got := c.Addrs(); !slices.Equal(got, addrs("10.0.0.1", "fd00::1")) {
		t.Error(got)
	}
}

// Claims from many goroutines never get the same address twice (cilium #45383: concurrent
// claims raced).
func TestAtOnce(t *testing.T) {
	p := mustNew(t, poolOf("a", "10.0.0.0/27", "fd00::/64"))
	var owners [2]sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				c, err := p.Claim("a", t0)
				if err != nil {
					t.Error(err)
					return
				}
				for i, a := range c.Addrs() {
					if _, taken := owners[i].LoadOrStore(a, true); taken {
						t.Errorf("%s has two owners", a)
					}
				}
				p.Stats(t0)
				for i, a := range c.Addrs() {
					owners[i].Delete(a)
					p.Free(a, time.Time{})
				}
			}
		})
	}
	wg.Wait()
	want(t, figures(p, t0), "a 10.0.0.0/27 0+0/30 fd00::/64 0+0/18446744073709551614")
}
