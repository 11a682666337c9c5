package nft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/berth-net/berth/internal/cidrs"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/nettest"
)

// somewhere returns a few CIDRs of both families, many of which touch or contain each other, and some of which reach the
// family's last address.
func somewhere(r *rand.Rand) (all []netip.Prefix) {
	for range r.IntN(12) {
		addr, most := netip.AddrFrom4([4]byte{byte(254 + r.IntN(2)), byte(r.IntN(2) * 255), 255, byte(r.IntN(256))}), 32
		if r.IntN(2) == 0 {
			addr, most = netip.AddrFrom16([16]byte{0xff, byte(r.IntN(2) * 255), 14: 255, 15: byte(r.IntN(256))}), 128
		}
		p, _ := addr.Prefix(most - r.IntN(9))
		all = append(all, p)
	}
	return all
}

// Adjust makes of any addresses any others, in one transaction, and keeps what packets have put into the table's sets.
func TestAdjust(t *testing.T) {
	tables := Open(nettest.Node(t))
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	last := sample()
	must(t, tables.Replace(last))
	begun := newest(t, tables)
	changes := 0
	for step := range 100 {
		next := last
		switch r.IntN(3) {
		case 0:
			next.Excluded = cidrs.Of(somewhere(r)...)
		case 1:
			next.Pools = somewhere(r)
		default:
			next.Excluded, next.Tunnels = cidrs.Of(somewhere(r)...), cidrs.Of(somewhere(r)...)
		}
		if adjusted, err := tables.Adjust(last, next); !adjusted || err != nil {
			t.Fatalf("seed %d, step %d: from %v %v %v to %v %v %v: %v, %v", seed, step,
				last.Pools, last.Excluded, last.Tunnels, next.Pools, next.Excluded, next.Tunnels, adjusted, err)
		}
		if _, err := tables.Verify(next); err != nil {
			t.Fatalf("seed %d, step %d: from %v to %v: %v", seed, step, last.Excluded, next.Excluded, err)
		}
		last = next
		changes++
	}
	if now := newest(t, tables); int(now-begun) > changes {
		t.Errorf("%d transactions for %d changes", now-begun, changes)
	}
}

func newest(t *testing.T, tables *Tables) Generation {
	t.Helper()
	at, err := tables.Generation()
	must(t, err)
	return at
}

// Rulesets that differ in more are Change's. A table that others have changed is refused, and stays as it is.
func TestAdjustRefuses(t *testing.T) {
	at := nettest.Node(t)
	tables := Open(at)
	r := sample()
	r.Excluded = cidrs.Of(prefixes("192.0.2.0/24", "198.51.100.0/24")...)
	must(t, tables.Replace(r))
	more := r
	more.Connections++
	if adjusted, err := tables.Adjust(r, more); adjusted || err != nil {
		t.Errorf("another limit of connections: %v, %v", adjusted, err)
	}
	nftRun(t, at, "", "delete", "element", "inet", r.Table(), "excluded4", "{ 192.0.2.0/24 }")
	less := r
	less.Excluded = cidrs.Of(prefixes("203.0.113.0/24")...)
	if _, err := tables.Adjust(r, less); !errors.Is(err, kernel.ErrNotFound) {
		t.Errorf("a table that lacks what has to go: %v", err)
	}
	r.Excluded = r.Excluded.Without(prefixes("192.0.2.0/24")...)
	if _, err := tables.Verify(r); err != nil {
		t.Errorf("behind a transaction that was refused: %v", err)
	}
}

// BenchmarkAdjust measures what it costs the table that one of a cluster's nodes gets another CIDR.
func BenchmarkAdjust(b *testing.B) {
	for _, n := range []int{10, 10000} {
		b.Run(fmt.Sprintf("%d nodes", n), func(b *testing.B) {
			tables := Open(nettest.Node(b))
			cidr := func(i int) netip.Prefix {
				return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
			}
			r := sample()
			r.Excluded = cidrs.Set{} // has all of 10.0.0.0/8 otherwise
			for i := range n {
				r.Excluded = r.Excluded.With(cidr(i))
			}
			must(b, tables.Replace(r))
			turn := 0
			for b.Loop() {
				was := r
				r.Excluded = r.Excluded.Without(cidr(n/2 + turn%2*n)).With(cidr(n/2 + (turn+1)%2*n))
				turn++
				if adjusted, err := tables.Adjust(was, r); !adjusted || err != nil {
					b.Fatal(adjusted, err)
				}
			}
		})
	}
}
