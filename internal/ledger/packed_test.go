package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// A packed map has what a Go map has, whatever comes and goes, and a view what the map had.
func TestPacked(t *testing.T) {
	for name, hash := range map[string]func(string) uint32{
		"a good hash":  nil,
		"a poor one":   func(key string) uint32 { return uint32(len(key) % 3) },
		"none at all":  func(string) uint32 { return 7 },
		"of one digit": func(key string) uint32 { return uint32(key[len(key)-1]) },
	} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			p, want := newPacked(tombForm), map[string]tomb{}
			if hash != nil {
				p.hash = hash
			}
			var seen view[tomb]
			var saw map[string]tomb
			for i := range 20_000 {
				switch key := packedKey(rng); rng.IntN(40) {
				case 0:
					until := rng.Int64N(1000)
					old := func(v tomb) bool { return v.until < until }
					n := len(want)
					maps.DeleteFunc(want, func(_ string, v tomb) bool { return old(v) })
					if got := len(p.keys(old)); got != n-len(want) {
						t.Fatalf("step %d: %d keys, want %d", i, got, n-len(want))
					}
					p.dropAll(old)
				case 1:
					p.shrink()
				case 2:
					seen, saw = p.view(), maps.Clone(want)
				case 3, 4, 5, 6, 7, 8, 9, 10, 11, 12:
					p.drop(key)
					delete(want, key)
				default:
					v := packedTomb(rng)
					p.put(key, v)
					want[key] = v
				}
				key := packedKey(rng)
				got, ok := p.get(key)
				if v, has := want[key]; ok != has || got != v || p.len() != len(want) {
					t.Fatalf("step %d: %.99s is %.60v, %v, want %.60v, %v; %d records, want %d", i, key, got, ok, v, has, p.len(), len(want))
				}
				if i%500 == 0 && (!maps.Equal(maps.Collect(p.view().all()), want) || !maps.Equal(maps.Collect(seen.all()), saw)) {
					t.Fatalf("step %d: a view differs", i)
				}
			}
			if got := slices.Collect(p.values()); len(got) != len(want) {
				t.Errorf("%d values, want %d", len(got), len(want))
			}
		})
	}
}

func packedKey(rng *rand.Rand) string {
	key := fmt.Sprintf("network/%064x/eth%d", rng.IntN(300), rng.IntN(3))
	switch rng.IntN(20) {
	case 0: // no number, and a 0
		key = fmt.Sprintf("address\x00deadbeefdeadbeefdeadbeef.%d", rng.IntN(10))
	case 1: // a number that is too short, or odd, or alone
		key = strings.Repeat("f", 1+rng.IntN(40))
	case 2: // many texts around
		key = fmt.Sprintf("net%d/%024x/eth0", rng.IntN(400), rng.IntN(3))
	case 3: // a number that is long
		key = strings.Repeat("01", 250+rng.IntN(10))
	}
	if rng.IntN(100) == 0 {
		key += strings.Repeat("x", rng.IntN(2*pieceSize))
	}
	return key
}

func packedTomb(rng *rand.Rand) tomb {
	boots := []string{"", "boot", "boot", "boot", "boot", "another", strings.Repeat("b", 2*pieceSize)}
	return tomb{boots[rng.IntN(len(boots))], rng.Int64() - rng.Int64(), rng.Int64N(1000)}
}

// The bytes that restForm makes of a rest have all that is in the rest.
func TestRestForm(t *testing.T) {
	for _, r := range []rested{
		{},
		{freed: 1},
		{-5, span{-1 << 63, 1<<63 - 1, 0, 0}},
		{1<<63 - 1, span{-1 << 63, -1 << 63, 1<<32 - 1, -1 << 63}},
		{1_700_000_000_000_000_000, span{1_700_000_000_000_000_007, 1_700_000_060_000_000_007, 5, 77_000_000_000}},
		{3, span{3, 3, 0, 9}},
	} {
		if got := restForm.unpack(restForm.pack(nil, r, ""), ""); got != r {
			t.Errorf("%+v became %+v", r, got)
		}
	}
}

// Records that have gone take no memory: neither if records go in the order in which they came,
// nor if some stay.
func TestPackedGivesBack(t *testing.T) {
	for name, stays := range map[string]int{"all go": 1 << 62, "one in a hundred stays": 100} {
		t.Run(name, func(t *testing.T) {
			p := newPacked(tombForm)
			const live = 2000
			for i := range 100_000 {
				p.put(fmt.Sprint(i), tomb{"boot", int64(i), 1})
				if gone := i - live; gone >= 0 && gone%stays != 0 {
					p.drop(fmt.Sprint(gone))
				}
				if i%1000 == 0 {
					p.shrink()
				}
			}
			pieces := 0
			for _, piece := range p.pieces {
				if piece != nil {
					pieces++
				}
			}
			if most := 4 + 2*p.bytes/pieceSize; pieces > most || len(p.pieces) > most {
				t.Errorf("%d of %d pieces for %d bytes", pieces, len(p.pieces), p.bytes)
			}
			if p.len() < live || p.len() != len(maps.Collect(p.view().all())) {
				t.Errorf("%d records", p.len())
			}
		})
	}
}

// A tombstone of a container takes 60 bytes in the pieces, where its key alone has 80.
func TestPackedIsSmall(t *testing.T) {
	p := newPacked(tombForm)
	const n = 10_000
	for i := range n {
		started := int64(17*time.Hour) + int64(i)*int64(time.Millisecond)
		p.put(fmt.Sprintf("k8s-network/%064x/eth0", uint64(i)*0x9e3779b97f4a7c15), tomb{"boot", started, started + int64(5*time.Minute)})
	}
	if each := p.bytes / n; each > 60 || len(p.odd) > 10 {
		t.Errorf("a tombstone takes %d bytes, and %d are beside the pieces", each, len(p.odd))
	}
}
