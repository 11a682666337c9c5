package link_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// crowds lists how many other links the node has during a measurement.
var crowds = []int{10, 2000}

// crowd fills the node with links of other pods, which the benchmark's end
// deletes.
func (f *fixture) crowd(n int) {
	hs := f.many(n, both)
	f.Cleanup(func() { f.release(hs...) })
}

// among runs a benchmark beside each of the crowds.
func among(b *testing.B, what string, run func(b *testing.B, f *fixture)) {
	for _, n := range crowds {
		b.Run(fmt.Sprintf("%s/links=%d", what, n), func(b *testing.B) {
			f := newFixture(b)
			f.forwarding()
			f.crowd(n)
			run(b, f)
		})
	}
}

// BenchmarkAcquire makes links, 20 to a pod's namespace. It deletes them outside of the measured time.
func BenchmarkAcquire(b *testing.B) {
	for _, families := range []string{"4", both} {
		among(b, "families="+families, func(b *testing.B, f *fixture) {
			var hs []hold.Hold
			pod := nettest.Pod(b)
			for b.Loop() {
				b.StopTimer()
				if len(hs) == 20 {
					f.release(hs...)
					nettest.Delete(b, pod)
					hs, pod = nil, nettest.Pod(b)
				}
				h := f.hold(pod.Ref(), families)
				spec(h).Ifname = fmt.Sprintf("eth%d", len(hs))
				b.StartTimer()
				must(b, f.kind.Acquire(context.Background(), h))
				hs = append(hs, h)
			}
			f.release(hs...)
		})
	}
}

// BenchmarkAcquireAtOnce makes 100 links an iteration, all at once, each in a
// pod of its own.
func BenchmarkAcquireAtOnce(b *testing.B) {
	for _, families := range []string{"4", both} {
		b.Run("families="+families, func(b *testing.B) {
			f := newFixture(b)
			f.forwarding()
			const some = 100
			var hs []hold.Hold
			for b.Loop() {
				b.StopTimer()
				f.release(hs...)
				hs = nil
				for range some {
					hs = append(hs, f.hold(nettest.Pod(b).Ref(), families))
				}
				b.StartTimer()
				var all sync.WaitGroup
				for _, h := range hs {
					all.Go(func() {
						if err := f.kind.Acquire(context.Background(), h); err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
			}
			f.release(hs...)
			b.ReportMetric(float64(b.N*some)/b.Elapsed().Seconds(), "links/s")
		})
	}
}

// BenchmarkCut cuts off one link after the other.
func BenchmarkCut(b *testing.B) {
	for _, families := range []string{"4", both} {
		among(b, "families="+families, func(b *testing.B, f *fixture) {
			const some = 100
			hs := f.many(some, families)
			defer f.release(hs...)
			i := 0
			for b.Loop() {
				if i == some { // all links are cut off: the benchmark replaces them
					b.StopTimer()
					f.release(hs...)
					hs, i = f.many(some, families), 0
					b.StartTimer()
				}
				must(b, f.kind.Cut(context.Background(), hs[i]))
				i++
			}
		})
	}
}

// BenchmarkRelease deletes 32 dual-stack links an iteration, at once and one
// by one.
func BenchmarkRelease(b *testing.B) {
	for _, grouped := range []bool{true, false} {
		among(b, fmt.Sprintf("grouped=%t", grouped), func(b *testing.B, f *fixture) {
			size := f.kind.Batch
			for b.Loop() {
				b.StopTimer()
				hs := f.many(size, both)
				b.StartTimer()
				if grouped {
					f.release(hs...)
					continue
				}
				for _, h := range hs {
					f.release(h)
				}
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "links/s")
		})
	}
}

// BenchmarkVerify compares all links of a node at once, and a single link.
func BenchmarkVerify(b *testing.B) {
	for _, n := range append([]int{1}, crowds...) {
		b.Run(fmt.Sprintf("links=%d", n), func(b *testing.B) {
			f := newFixture(b)
			f.forwarding()
			hs := f.many(n, both)
			defer f.release(hs...)
			for b.Loop() {
				for _, err := range f.kind.Verify(context.Background(), nil, hs) {
					must(b, err)
				}
			}
		})
	}
}
