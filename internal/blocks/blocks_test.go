package blocks

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "0": "0", "0-41,44": "0-41,44", "0-1,2-3": "0-3", "0,1": "0-1",
		"1-0": "error", "3,1": "error", "1,1": "error", "01": "error", "-1": "error", "1-": "error", ",": "error", "a": "error", "+1": "error",
		"4611686018427387904": "error", " 1": "error",
	} {
		s, err := Parse(text)
		got := s.String()
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("Parse(%q) = %q, want %q", text, got, want)
		}
	}
}

// FuzzSet holds a Set to a map: each byte of the input adds or removes a number.
func FuzzSet(f *testing.F) {
	f.Add([]byte{2, 4, 6, 5, 3})
	f.Fuzz(func(t *testing.T, input []byte) {
		var s Set
		model := map[int64]bool{}
		for _, b := range input {
			n := int64(b >> 1)
			if b&1 == 0 {
				s.Add(n)
				model[n] = true
			} else {
				s.Remove(n)
				delete(model, n)
			}
		}
		want := slices.Sorted(maps.Keys(model))
		if got := slices.Collect(s.All); !slices.Equal(got, want) {
			t.Fatalf("%v are in the set, want %v", got, want)
		}
		if s.Len() != int64(len(want)) {
			t.Fatalf("Len() = %d, want %d", s.Len(), len(want))
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("Parse(%q) = %q, %v", s, again, err)
		}
		for n := range int64(130) {
			free := n
			for model[free] {
				free++
			}
			if s.Has(n) != model[n] || s.Between(n, n) != model[n] {
				t.Fatalf("Has(%d) = %t, want %t", n, s.Has(n), model[n])
			}
			if got, ok := s.Free(n, 129); got != free || ok != (free <= 129) {
				t.Fatalf("Free(%d, 129) = %d, %t of %s, want %d", n, got, ok, s, free)
			}
		}
	})
}

// FuzzMinus holds Of and Minus to a map.
func FuzzMinus(f *testing.F) {
	f.Add([]byte{1, 2, 3, 9}, []byte{2, 7})
	f.Fuzz(func(t *testing.T, all, less []byte) {
		set := func(bytes []byte) Set {
			var numbers []int64
			for _, b := range bytes {
				numbers = append(numbers, int64(b))
			}
			return Of(numbers)
		}
		model := map[int64]bool{}
		for _, b := range all {
			model[int64(b)] = true
		}
		for _, b := range less {
			delete(model, int64(b))
		}
		got := set(all).Minus(set(less))
		if want := slices.Sorted(maps.Keys(model)); !slices.Equal(slices.Collect(got.All), want) {
			t.Fatalf("%v without %v is %s, want %v", all, less, got, want)
		}
		if again, err := Parse(got.String()); err != nil || !slices.Equal(again.ranges, got.ranges) {
			t.Fatalf("%s has ranges %v", got, got.ranges)
		}
	})
}

// FuzzParse holds Parse to String.
func FuzzParse(f *testing.F) {
	f.Add("0-41,44")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(s.String()); err != nil || again.String() != s.String() {
			t.Fatalf("Parse(%q) = %q, which Parse reads as %q, %v", text, s, again, err)
		}
	})
}

func TestSpace(t *testing.T) {
	for _, c := range []struct {
		cidrs []netip.Prefix
		bits  int
		total int64
		some  map[int64]string
	}{
		{prefixes("10.1.0.0/24", "10.0.0.0/25"), 26, 6, map[int64]string{0: "10.1.0.0/26", 3: "10.1.0.192/26", 4: "10.0.0.0/26", 5: "10.0.0.64/26"}},
		{prefixes("0.0.0.0/0"), 32, 1 << 32, map[int64]string{1<<32 - 1: "255.255.255.255/32"}},
		{prefixes("10.0.0.0/8"), 8, 1, map[int64]string{0: "10.0.0.0/8"}},
		{prefixes("fd00::/48", "fd01::/120"), 122, MaxPerCIDR + 4, map[int64]string{
			1: "fd00::40/122", 1 << 31: "fd00::20:0:0/122", MaxPerCIDR: "fd01::/122", MaxPerCIDR + 3: "fd01::c0/122",
		}},
		{prefixes("fd00::/48"), 64, 1 << 16, map[int64]string{1: "fd00:0:0:1::/64", 1<<16 - 1: "fd00:0:0:ffff::/64"}},
		{prefixes("fd00:0:0:8000::/49"), 128, MaxPerCIDR, map[int64]string{5: "fd00:0:0:8000::5/128"}},
	} {
		s, err := NewSpace(c.cidrs, c.bits)
		if err != nil || s.Total() != c.total {
			t.Fatalf("%v of /%d: %d blocks, %v, want %d", c.cidrs, c.bits, s.Total(), err, c.total)
		}
		for n, want := range c.some {
			block := s.Block(n)
			if block.String() != want {
				t.Errorf("%v of /%d: block %d is %s, want %s", c.cidrs, c.bits, n, block, want)
			}
			if got, ok := s.Number(block); got != n || !ok {
				t.Errorf("%v of /%d: %s has number %d, %t, want %d", c.cidrs, c.bits, block, got, ok, n)
			}
		}
	}
}

func TestNoBlock(t *testing.T) {
	s, err := NewSpace(prefixes("10.1.0.0/24", "10.3.0.0/24"), 26)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"10.0.0.0/26", "10.2.0.0/26", "10.4.0.0/26", "10.1.0.0/27", "10.1.0.0/24", "10.1.0.1/26", "fd00::/26"} {
		if n, ok := s.Number(netip.MustParsePrefix(text)); ok {
			t.Errorf("%s has number %d", text, n)
		}
	}
	s, err = NewSpace(prefixes("fd00::/48"), 122)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"fd00::40:0:0/122", "fd00:0:0:1::/122", "fd00:0:0:ffff:ffff:ffff:ffff:ffc0/122"} { // behind the first 2^32
		if n, ok := s.Number(netip.MustParsePrefix(text)); ok {
			t.Errorf("%s has number %d", text, n)
		}
	}
	for _, bad := range [][]netip.Prefix{
		prefixes("10.0.0.0/8", "10.1.0.0/16"), prefixes("10.0.0.0/8", "fd00::/8"), prefixes("10.0.0.1/8"), prefixes("10.0.0.0/27"),
	} {
		if _, err := NewSpace(bad, 26); err == nil {
			t.Errorf("%v make a space", bad)
		}
	}
}

func TestUsable(t *testing.T) {
	for _, c := range []struct {
		bits, family int
		want         int64
	}{{26, 32, 62}, {32, 32, 1}, {31, 32, 2}, {30, 32, 2}, {122, 128, 63}, {128, 128, 1}, {127, 128, 2}, {64, 128, 1<<63 - 1}} {
		if got := Usable(c.bits, c.family); got != c.want {
			t.Errorf("a /%d of %d bits has %d addresses for pods, want %d", c.bits, c.family, got, c.want)
		}
	}
}
