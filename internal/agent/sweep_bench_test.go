package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// BenchmarkSweep measures a sweep of 5,000 attachments on real links, of which nothing differs. What
// counts is the sweep's processor time, the kernel's part included.
func BenchmarkSweep(b *testing.B) {
	const pods, each = 50, 100
	r := newRig(b, "default=10.88.0.0/16")
	r.cooldown = time.Millisecond
	r.bringUp()
	defer r.close()
	ctx, stop := context.WithCancel(b.Context())
	var watching sync.WaitGroup
	r.mend.Listen(r.drain.Waiting)
	watching.Go(func() { r.mend.Keep(ctx) })
	defer func() { stop(); watching.Wait() }()
	var busy sync.WaitGroup
	var netns []*ns.Netns
	for i := range pods {
		pod := nettest.Pod(b)
		netns = append(netns, pod)
		busy.Go(func() {
			for j := range each {
				req := request(fmt.Sprint("c", i), pod)
				req.Ifname = fmt.Sprint("eth", j)
				if _, err := r.tryAdd(req); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	busy.Wait()
	if n := len(r.index.All()); n != pods*each {
		b.Fatalf("%d attachments, not %d", n, pods*each)
	}
	b.ReportAllocs()
	var spent time.Duration
	for b.Loop() {
		before := cpu(b)
		if report, err := r.core.Engine.Sweep(b.Context()); err != nil || len(report.Findings) > 0 {
			b.Fatal(err, report.Findings)
		}
		spent += cpu(b) - before
	}
	b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "cpu-ms/op")
	b.StopTimer()
	for _, pod := range netns {
		nettest.Delete(b, pod)
	}
	nettest.Eventually(b, "the links to be gone", func() bool {
		return !strings.Contains(nettest.Snapshot(b, nil).Only("link").String(), "veth")
	})
}

// cpu is the processor time that the process has taken.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
