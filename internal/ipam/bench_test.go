package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// BenchmarkClaimFree claims an address and frees the one that has been in use for the
// longest time, over and over. Each run has other numbers of addresses in use and in cooldown.
func BenchmarkClaimFree(b *testing.B) {
	for _, bb := range []struct {
		name          string
		cidrs         []string
		used, resting int
	}{
		{"24", []string{"10.0.0.0/24"}, 100, 50},
		{"16", []string{"10.0.0.0/16"}, 250, 1000},
		{"16-nearly-full", []string{"10.0.0.0/16"}, 65_000, 500},
		{"16-60000-resting", []string{"10.0.0.0/16"}, 5000, 60_000},
		{"8", []string{"10.0.0.0/8"}, 5000, 60_000},
		{"64", []string{"fd00::/64"}, 250, 1000},
		{"64-60000-resting", []string{"fd00::/64"}, 5000, 60_000},
		{"16+64", []string{"10.0.0.0/16", "fd00::/64"}, 250, 1000},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := mustNew(b, poolOf("a", bb.cidrs...))
			benchClaimFree(b, p, bb.used, bb.resting)
		})
	}
	b.Run("1000-full-cidrs", func(b *testing.B) {
		cfg := PoolConfig{Name: "a"}
		for i := range 1000 {
			addr := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
			cfg.CIDRs = append(cfg.CIDRs, netip.PrefixFrom(addr, 28))
		}
		benchClaimFree(b, mustNew(b, cfg), 13_900, 50)
	})
}

// BenchmarkMap is what BenchmarkClaimFree is compared with: to put an address into a Go map of 5,000, and to
// delete the one that has been in it for the longest time, over and over.
func BenchmarkMap(b *testing.B) {
	const used, all = 5000, 1 << 16
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	busy := map[netip.Addr]int{}
	for i := range used {
		busy[at(i)] = i
	}
	i := used
	for b.Loop() {
		busy[at(i%all)] = i
		delete(busy, at((i-used)%all))
		i++
	}
}

func benchClaimFree(b *testing.B, p *IPAM, used, resting int) {
	const tick = time.Millisecond
	now := t0
	busy := make([]Claim, used)
	for i := range busy {
		c, err := p.Claim("a", now)
		if err != nil {
			b.Fatal(err)
		}
		busy[i] = c
	}
	step := func(i int) {
		if i%1000 == 0 { // as the agent does, about once a second
			rinse(p, now)
		}
		c, err := p.Claim("a", now)
		if err != nil { // and as the agent does when a claim waits
			rinse(p, now)
			c, err = p.Claim("a", now)
		}
		if err != nil {
			b.Fatal(err)
		}
		old := busy[i%used]
		busy[i%used] = c
		until := now.Add(time.Duration(resting) * tick)
		if old.V4.IsValid() {
			p.Free(old.V4, until)
		}
		if old.V6.IsValid() {
			p.Free(old.V6, until)
		}
		now = now.Add(tick)
	}
	// Go on until the view remembers as many addresses as it will.
	for i := range remember + resting + used {
		step(i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		step(i)
		i++
	}
}

// BenchmarkFresh only claims, in a pool of which nobody has had an address.
func BenchmarkFresh(b *testing.B) {
	p := mustNew(b, poolOf("a", "fd00::/64"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Claim("a", t0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExact claims requested addresses, far beyond those that were given out, and frees
// them without a cooldown.
func BenchmarkExact(b *testing.B) {
	p := mustNew(b, poolOf("a", "fd00::/64"))
	want := make([][]netip.Addr, 1000)
	for i := range want {
		want[i] = addrs(fmt.Sprintf("fd00::%x:0:0", i+1))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		c, err := p.ClaimExact("a", want[i%len(want)], t0)
		if err != nil {
			b.Fatal(err)
		}
		p.Free(c.V6, time.Time{})
		i++
	}
}

// BenchmarkParallel is BenchmarkClaimFree from all processors at once.
func BenchmarkParallel(b *testing.B) {
	p := mustNew(b, poolOf("a", "10.0.0.0/16"))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c, err := p.Claim("a", t0)
			if err != nil {
				b.Error(err)
				return
			}
			p.Free(c.V4, time.Time{})
		}
	})
}

// BenchmarkSet changes the config of a pool that remembers as much as it may.
func BenchmarkSet(b *testing.B) {
	p := mustNew(b, poolOf("a", "fd00::/64"))
	for range remember {
		p.Claim("a", t0)
	}
	configs := [][]PoolConfig{{poolOf("a", "fd00::/64", "10.0.0.0/24")}, {poolOf("a", "fd00::/64")}}
	i := 0
	for b.Loop() {
		if err := p.Set(configs[i%2], t0); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
