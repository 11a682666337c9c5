package engine_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/fault"
)

var (
	pairsFlag = flag.Int("pairs", 400, "how many pairs TestPairs tries; -1: all of them")
	pairFlag  = flag.String("pair", "", "the only pair that TestPairs tries, as it has printed it")
)

// pair is a fault and something that happens beside it.
type pair struct {
	at     int        // the number of the operation that the fault hits
	mode   fault.Mode // what the fault does to it
	narrow bool       // a fault that goes on hits one owner, and not a whole kind
	beside int        // index in besides
	late   bool       // what happens beside comes a moment after the operation has begun, while all goes on
}

func (p pair) String() string {
	return fmt.Sprintf("%d,%d,%t,%d,%t", p.at, int(p.mode), p.narrow, p.beside, p.late)
}

func (p pair) words() string {
	where, when := "its kind", "under way"
	if p.narrow {
		where = "one owner"
	}
	if p.late {
		when = "later"
	}
	return fmt.Sprintf("%s at operation %d (of %s), and %s, %s", p.mode, p.at, where, besides[p.beside].name, when)
}

// TestPairs lets every operation of a small life, looks and commits included, fail, hang or
// be the last. Meanwhile something else happens (besides), because two things together may
// break what neither breaks alone. Time is the bubble's, so that a hang costs nothing. watch
// and pairRun have the rules: steps that are bounded end in time, and at last nothing is
// left.
//
// All pairs take minutes: go test -run TestPairs -pairs -1.
func TestPairs(t *testing.T) {
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	if *pairFlag != "" {
		var p pair
		if _, err := fmt.Sscanf(strings.ReplaceAll(*pairFlag, ",", " "), "%d %d %t %d %t", &p.at, &p.mode, &p.narrow, &p.beside, &p.late); err != nil {
			t.Fatalf("-pair %s: %v", *pairFlag, err)
		}
		tryPair(t, p)
		return
	}
	operations := 0
	synctest.Test(t, func(t *testing.T) {
		r := newPairRun(t, pair{at: 1 << 30})
		r.run()
		operations = r.plan.Counted()
	})
	if operations < 50 {
		t.Fatalf("only %d operations: the plan does not reach the engine", operations)
	}
	t.Logf("replay all with -seed %d", seed)
	tried, surfaced := 0, map[int]bool{}
	for _, p := range sample(allPairs(operations), operations, *pairsFlag, seed) {
		if tried++; tryPair(t, p) {
			surfaced[p.at] = true
		}
	}
	t.Logf("%d pairs at %d of %d operations", tried, len(surfaced), operations)
	if len(surfaced) < operations*9/10 {
		t.Errorf("the faults have reached %d of %d operations", len(surfaced), operations)
	}
}

// tryPair runs one pair, and reports whether its fault has surfaced.
func tryPair(t *testing.T, p pair) (surfaced bool) {
	synctest.Test(t, func(t *testing.T) {
		r := newPairRun(t, p)
		r.run()
		surfaced = r.plan.Surfaced() != ""
		if t.Failed() {
			t.Logf("%s, at %q: replay with -pair %s", p.words(), r.plan.Surfaced(), p)
		}
	})
	return surfaced
}

func allPairs(operations int) []pair {
	var all []pair
	for at := 1; at <= operations; at++ {
		for _, mode := range append(fault.Modes(), fault.Hangs()...) {
			for beside := range besides {
				for _, late := range []bool{false, true} {
					all = append(all, pair{at, mode, true, beside, late})
					if mode == fault.FailForever || mode.Hangs() {
						all = append(all, pair{at, mode, false, beside, late})
					}
				}
			}
		}
	}
	return all
}

// sample chooses pairs, with every operation as often as any other.
func sample(all []pair, operations, number int, seed uint64) []pair {
	random := rand.New(rand.NewPCG(seed, 2))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if number < 0 || number >= len(all) {
		return all
	}
	most := (number + operations - 1) / operations
	var chosen []pair
	times := map[int]int{}
	for _, p := range all {
		if times[p.at]++; times[p.at] <= most && len(chosen) < number {
			chosen = append(chosen, p)
		}
	}
	return chosen
}
