package history

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
)

// BenchmarkAdd measures what a record costs the caller that ends a release, and what writing
// the record costs the agent in all.
func BenchmarkAdd(b *testing.B) {
	r := newRig(b, b.TempDir(), 10_000)
	p := past(1, begun)
	b.ReportAllocs()
	n, before := 0, cpu(b)
	for ; b.Loop(); n++ {
		r.Add(p)
		if n%200 == 199 { // a burst of 1,000 DELs a second
			must(b, r.Flush())
		}
	}
	b.ReportMetric(float64(cpu(b)-before)/float64(n), "cpu-ns/op")
}

// cpu returns how long this process has run on a processor.
func cpu(b *testing.B) int64 {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkFind looks for one container among 10,000 records.
func BenchmarkFind(b *testing.B) {
	r := newRig(b, b.TempDir(), 10_000)
	for n := 0; n < 10_000; n += 500 {
		r.add(n, n+500)
		must(b, r.Flush())
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := read(b, r.Read(api.PastFilter{Container: "container77"})); got != "77-77" {
			b.Fatal(got)
		}
	}
}
