package cidrs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

// somewhere returns a CIDR of either family, near others that it returns: many contain or touch each other, or are the same.
func somewhere(r *rand.Rand) netip.Prefix {
	high, low := byte(r.IntN(2)*255), byte(r.IntN(256))
	addr, most := netip.AddrFrom4([4]byte{high, 0, 0, low}), 32
	if r.IntN(2) == 0 {
		addr, most = netip.AddrFrom16([16]byte{high, 15: low}), 128
	}
	bits := most - r.IntN(9)
	if r.IntN(40) == 0 {
		bits = r.IntN(2) * 8
	}
	return netip.PrefixFrom(addr, bits).Masked()
}

// widest returns what Set.Widest should.
func widest(all []netip.Prefix) (some []netip.Prefix) {
	for _, p := range all {
		if !slices.ContainsFunc(all, func(q netip.Prefix) bool { return q.Overlaps(p) && q.Bits() < p.Bits() }) {
			some = append(some, p)
		}
	}
	slices.SortFunc(some, netip.Prefix.Compare)
	return slices.Compact(some)
}

// minus returns the elements of a that are not in b.
func minus(a, b []netip.Prefix) (rest []netip.Prefix) {
	for _, p := range a {
		if !slices.Contains(b, p) {
			rest = append(rest, p)
		}
	}
	return rest
}

// A set agrees with a list of the same CIDRs, whatever comes and goes, and earlier sets stay as they were.
func TestSet(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var s, before Set
	var list, listBefore []netip.Prefix
	for step := range 3000 {
		say := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d, step %d: %v: %s", seed, step, list, fmt.Sprintf(format, args...))
		}
		p := somewhere(r)
		if grow := r.IntN(40) > len(list); grow {
			s, list = s.With(p), append(slices.Clone(list), p)
		} else {
			if len(list) > 0 && r.IntN(4) > 0 {
				p = list[r.IntN(len(list))]
			}
			s = s.Without(p)
			if i := slices.Index(list, p); i >= 0 {
				list = slices.Delete(slices.Clone(list), i, i+1)
			}
		}
		if got, want := slices.Collect(s.Widest()), widest(list); !slices.Equal(got, want) {
			say("the widest are %v, not %v", got, want)
		}
		if other := Of(list...); !reflect.DeepEqual(s, other) {
			say("the set differs from one that was made at once")
		}
		at := somewhere(r)
		var want []netip.Prefix
		for _, q := range list {
			if q.Overlaps(at) {
				want = append(want, q)
			}
		}
		slices.SortFunc(want, netip.Prefix.Compare)
		want = slices.Compact(want)
		got := slices.SortedFunc(s.Overlapping(at), netip.Prefix.Compare)
		if !slices.Equal(got, want) {
			say("%v overlap %s, not %v", want, at, got)
		}
		if has := slices.ContainsFunc(list, func(q netip.Prefix) bool { return q.Contains(at.Addr()) }); s.Contains(at.Addr()) != has {
			say("contains %s: %t", at.Addr(), !has)
		}
		lost, gained := Differ(before, s)
		slices.SortFunc(lost, netip.Prefix.Compare)
		slices.SortFunc(gained, netip.Prefix.Compare)
		if was, is := widest(listBefore), widest(list); !slices.Equal(lost, minus(was, is)) || !slices.Equal(gained, minus(is, was)) {
			say("%v were lost and %v gained since %v", lost, gained, listBefore)
		}
		if r.IntN(8) == 0 {
			before, listBefore = s, list
		}
	}
}

// Host bits and CIDRs that are not valid are ignored, and what overlaps comes from the outside to the inside.
func TestSetOfAnything(t *testing.T) {
	s := Of(netip.MustParsePrefix("10.1.2.3/16"), netip.Prefix{}, netip.MustParsePrefix("10.1.2.0/24"), netip.MustParsePrefix("::ffff:10.0.0.1/128"))
	if got := s.String(); got != "[10.1.0.0/16 ::ffff:10.0.0.1/128]" {
		t.Errorf("the set is %s", got)
	}
	if got := fmt.Sprint(slices.Collect(s.Overlapping(netip.MustParsePrefix("10.1.2.128/25")))); got != "[10.1.0.0/16 10.1.2.0/24]" {
		t.Errorf("%s overlap", got)
	}
	if s.Contains(netip.Addr{}) || s.Contains(netip.MustParseAddr("10.2.0.0")) {
		t.Error("the set has what it lacks")
	}
}

// A CIDR more or less, and the difference that it makes, cost next to nothing in a set of thousands: all but the way to the CIDR is shared.
func TestSetOfThousands(t *testing.T) {
	var all []netip.Prefix
	for i := range 20000 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	s, p := Of(all...), netip.MustParsePrefix("10.240.0.0/24")
	if s.Without(p, netip.MustParsePrefix("10.1.2.128/25")) != s {
		t.Error("without a CIDR that it lacks, the set is another one")
	}
	if made := testing.AllocsPerRun(10, func() { s = s.With(p).Without(p) }); made > 100 {
		t.Errorf("a CIDR that comes and goes takes %v allocations", made)
	}
	quickest := func(f func()) (least time.Duration) {
		for i := range 10 {
			began := time.Now()
			f()
			if took := time.Since(began); i == 0 || took < least {
				least = took
			}
		}
		return least
	}
	with := s.With(p)
	walk := quickest(func() { _ = slices.Collect(s.Widest()) })
	compared := quickest(func() {
		if lost, gained := Differ(s, with); len(lost) > 0 || len(gained) != 1 || reflect.DeepEqual(s, with) {
			t.Errorf("lost %v, gained %v", lost, gained)
		}
	})
	if compared > walk/4 {
		t.Errorf("two sets are compared in %s, and walked in %s", compared, walk)
	}
}
