package link_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/nettest"
)

// crowds are how many links a node has beside those that are measured.
var crowds = []int{10, 2000}

// crowd fills the node with links of other pods, all in one namespace.
func (f *fixture) crowd(n int) {
	f.Helper()
	pod := nettest.Pod(f)
	hs := make([]hold.Hold, n)
	for i := range hs {
		hs[i] = f.hold(pod.Ref(), both)
		spec(hs[i]).Ifname = fmt.Sprintf("eth%d", i)
		must(f, f.kind.Acquire(context.Background(), hs[i]))
	}
	f.Cleanup(func() { f.release(hs...) })
}

// BenchmarkAcquire makes links, 100 to a pod's namespace, which are deleted
// outside of the measured time.
func BenchmarkAcquire(b *testing.B) {
	for _, families := range []string{"4", both} {
		for _, n := range crowds {
			b.Run(fmt.Sprintf("families=%s/links=%d", families, n), func(b *testing.B) {
				f := newFixture(b)
				f.crowd(n)
				var hs []hold.Hold
				var pod = nettest.Pod(b)
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
}
