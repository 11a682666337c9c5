package ledger

import (
	"cmp"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// seed replays a run of the tests that are random.
var seed = flag.Int64("seed", 0, "seed of the random tests; 0: a new one, which is printed")

// updateGolden writes the golden ledger anew.
var updateGolden = flag.Bool("update", false, "write testdata/v2.db.gz anew")

// TestMain runs the tests in namespaces of their own, in which tests that fill a disk mount
// one. In a child of TestKill it runs the child instead.
func TestMain(m *testing.M) {
	if path := os.Getenv(envChild); path != "" {
		commitUntilKilled(path)
	}
	nettest.Main(m)
}

var must = nettest.Must

func newSeed(t testing.TB) int64 {
	s := cmp.Or(*seed, time.Now().UnixNano())
	t.Logf("replay with -seed %d", s)
	return s
}
