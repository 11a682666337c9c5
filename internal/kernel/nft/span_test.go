package nft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/cidrs"
)

func TestSpans(t *testing.T) {
	for _, tt := range []struct {
		prefixes []string
		v4, v6   string
	}{
		{nil, "[]", "[]"},
		{[]string{"10.88.0.7/16"}, "[10.88.0.0/16]", "[]"},
		{[]string{"10.0.0.1/32", "fd00::1/128"}, "[10.0.0.1]", "[fd00::1]"},
		{[]string{"10.1.0.0/16", "10.0.0.0/16"}, "[10.0.0.0/16 10.1.0.0/16]", "[]"}, // they touch
		{[]string{"10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8"}, "[10.0.0.0/8]", "[]"}, // one is in the other
		{[]string{"10.0.0.0/16", "10.2.0.0/16"}, "[10.0.0.0/16 10.2.0.0/16]", "[]"}, // apart
		{[]string{"0.0.0.0/0", "::/0", "255.0.0.0/8"}, "[0.0.0.0/0]", "[::/0]"},     // everything
		{[]string{"128.0.0.0/1", "0.0.0.0/1"}, "[0.0.0.0/1 128.0.0.0/1]", "[]"},     // everything, in halves
		{[]string{"255.255.255.255/32"}, "[255.255.255.255]", "[]"},                 // nothing comes after
		{[]string{"fd00:1::/64", "fd00:0:0:1::/64", "fd00::/64"}, "[]", "[fd00::/64 fd00:0:0:1::/64 fd00:1::/64]"},
	} {
		v4, v6 := spans(cidrs.Of(prefixes(tt.prefixes...)...).Widest())
		if fmt.Sprint(v4) != tt.v4 || fmt.Sprint(v6) != tt.v6 {
			t.Errorf("spans(%v) = %v, %v, want %s, %s", tt.prefixes, v4, v6, tt.v4, tt.v6)
		}
	}
}

// spansOf reads back what elements writes, in whatever order the kernel lists the members.
func TestElementsRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		want := randomSpans(rng)
		members := elements(want)
		rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if got := spansOf(members); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v came back as %v", seed, want, got)
		}
	}
}

// randomSpans returns spans of one byte's worth of IPv4 addresses, at both ends of the family, some of which touch.
func randomSpans(rng *rand.Rand) []span {
	var list []span
	for _, high := range []byte{0, 255} {
		at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{high, high, high, byte(n)}) }
		for n := rng.IntN(100); n < 256; n += rng.IntN(2) * rng.IntN(100) {
			end := min(n+rng.IntN(100), 255)
			list = append(list, span{at(n), at(end)})
			n = end + 1
		}
	}
	return list
}

func prefixes(list ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}
