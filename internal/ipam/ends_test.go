package ipam

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Ends that are pushed in any order are popped in the order of time, and those of one time
// as they were pushed. Popped ends take no room.
func TestEnds(t *testing.T) {
	eachSeed(t, 20, func(t *testing.T, rng *rand.Rand) {
		var s ends
		var all []end
		s.seq = math.MaxUint32 - 50 // it wraps
		for i := range 3000 {
			for range rng.IntN(3) {
				until := int64(i + 5)
				if rng.IntN(10) == 0 {
					until = int64(i + rng.IntN(5))
				}
				s.push(until, uint32(i))
				all = append(all, end{until, uint32(i), s.seq})
			}
			slices.SortStableFunc(all, func(a, b end) int { return cmp.Compare(a.until, b.until) })
			got, ok := s.front()
			if ok != (len(all) > 0) || ok && got != all[0] {
				t.Fatalf("front: %v, %v; want %v", got, ok, all)
			}
			if ok && got.until < int64(i) {
				s.pop()
				all = all[1:]
			}
			if len(all) > 100 {
				s, all = ends{queue: s.queue[:0]}, nil
			}
		}
		if cap(s.queue) > 512 {
			t.Errorf("room for %d, where there were at most 100", cap(s.queue))
		}
	})
}

func TestNanos(t *testing.T) {
	for in, want := range map[time.Time]int64{
		{}:                math.MinInt64,
		time.Unix(12, 34): 12_000_000_034,
		time.Unix(-1, 0):  -1_000_000_000,
		time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC): math.MaxInt64,
	} {
		if got := nanos(in); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
}
