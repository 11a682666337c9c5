package ledger

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/hold"
)

// fullOwner returns an owner whose record has about 1.2 kB, like an attachment's.
func fullOwner(i int) hold.Owner {
	o := newOwner(address(fmt.Sprintf("10.88.%d.%d", i>>8, i&255)), address(fmt.Sprintf("fd00::%x", i)))
	o.Meta = json.RawMessage(fmt.Sprintf(`{"network":"berth","containerID":"%064d","config":"%s"}`, i, strings.Repeat("c", 800)))
	return o
}

// BenchmarkCommit measures an owner's life (the three commits begin, releasing and forget)
// with different numbers of callers at once.
func BenchmarkCommit(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 250} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var syncs atomic.Int64
			count := func(string) { syncs.Add(1) }
			l := open(b, Options{Path: filepath.Join(b.TempDir(), "ledger.db"), Kinds: testKinds, volume: &hooked{syncs: count, datas: count}})
			syncs.Store(0)
			work := make(chan int, callers)
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for i := range work {
						o := fullOwner(i)
						for _, op := range []Op{Begin(o), Releasing(o.ID, time.Now()), Forget(o.ID, time.Now())} {
							if err := l.Commit(b.Context(), op); err != nil {
								b.Error(err)
							}
						}
					}
				})
			}
			for i := range b.N {
				work <- i
			}
			close(work)
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(3*b.N)/b.Elapsed().Seconds(), "commits/s")
			b.ReportMetric(float64(callers)*b.Elapsed().Seconds()*1e6/float64(3*b.N), "µs/commit")
			s := l.Stats()
			b.ReportMetric(float64(s.Commits)/float64(s.Transactions), "commits/tx")
			b.ReportMetric(float64(syncs.Load())/float64(s.Transactions), "syncs/tx")
		})
	}
}

// filled returns the path of a ledger with `owners` owners.
func filled(b testing.TB, owners int) string {
	path := filepath.Join(b.TempDir(), "ledger.db")
	l := open(b, Options{Path: path, Kinds: testKinds})
	var ops []Op
	for i := range owners {
		ops = append(ops, Begin(fullOwner(i)))
		if len(ops) == 250 || i == owners-1 {
			mustCommit(b, l, ops...)
			ops = nil
		}
	}
	must(b, l.Close())
	return path
}

func BenchmarkOpen(b *testing.B) {
	for _, owners := range []int{0, 250, 5000, 50000} {
		b.Run(fmt.Sprint(owners), func(b *testing.B) {
			path := filled(b, owners)
			b.ResetTimer()
			for range b.N {
				l, err := Open(Options{Path: path, Kinds: testKinds})
				must(b, err)
				b.StopTimer()
				l.Close()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkCommitAmong measures one caller's commits among many owners.
func BenchmarkCommitAmong(b *testing.B) {
	for _, owners := range []int{250, 5000, 50000} {
		b.Run(fmt.Sprint(owners), func(b *testing.B) {
			l := open(b, Options{Path: filled(b, owners), Kinds: testKinds})
			b.ResetTimer()
			for i := range b.N {
				o := fullOwner(owners + i)
				mustCommit(b, l, Begin(o))
				mustCommit(b, l, Releasing(o.ID, time.Now()))
				mustCommit(b, l, Forget(o.ID, time.Now()))
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(3*b.N), "µs/commit")
		})
	}
}

func BenchmarkOwners(b *testing.B) {
	l := open(b, Options{Path: filled(b, 5000), Kinds: testKinds})
	b.Run("all", func(b *testing.B) {
		for range b.N {
			if n := len(l.Owners()); n != 5000 {
				b.Fatal(n)
			}
		}
	})
	id := l.Owners()[0].ID
	b.Run("one", func(b *testing.B) {
		for range b.N {
			if _, ok := l.Owner(id); !ok {
				b.Fatal(id)
			}
		}
	})
}
