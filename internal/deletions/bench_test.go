package deletions

import (
	"testing"
	"time"

	"github.com/berth-net/berth/internal/root"
)

// The time that a DEL pays while the agent is away: mostly two fsyncs.
func BenchmarkWrite(b *testing.B) {
	dir := root.Dir(b.TempDir())
	for b.Loop() {
		mustWrite(b, dir, example)
	}
}

// The time that every ADD pays: a look at a queue that has nothing but spare files.
func BenchmarkPendingOf(b *testing.B) {
	q := open(b, root.Dir(b.TempDir()))
	if _, err := q.Refill(Spares); err != nil {
		b.Fatal(err)
	}
	q.now = func() time.Time { return time.Now().Add(restless) } // the folder has not changed for long
	for b.Loop() {
		if of, err := q.PendingOf("net", "c1", "eth0"); err != nil || len(of) > 0 {
			b.Fatal(of, err)
		}
	}
}

// The time that the agent pays at its start for each deletion that waits.
func BenchmarkPending(b *testing.B) {
	dir := root.Dir(b.TempDir())
	for i := range 100 {
		mustWrite(b, dir, numbered(i))
	}
	q := open(b, dir)
	for b.Loop() {
		if got := len(mustPending(b, q)); got != 100 {
			b.Fatal(got)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/100, "us/deletion")
}
