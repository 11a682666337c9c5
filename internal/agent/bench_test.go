package agent

import (
	"fmt"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// BenchmarkVerbs measures ADD and DEL of pods at once, without a plugin: wall
// time for all, and what each kind's operations took.
func BenchmarkVerbs(b *testing.B) {
	for _, workers := range []int{1, 16} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) { benchmarkVerbs(b, workers) })
	}
}

func benchmarkVerbs(b *testing.B, workers int) {
	r := newRig(b, "default=10.88.0.0/16")
	r.cooldown = time.Millisecond
	var mu sync.Mutex
	ops := map[string][]time.Duration{}
	r.observe = func(kind, op string, took time.Duration, holds int, _ error) {
		mu.Lock()
		defer mu.Unlock()
		ops[kind+" "+op] = append(ops[kind+" "+op], took)
		if op == "release" {
			ops[kind+" batch"] = append(ops[kind+" batch"], time.Duration(holds))
		}
	}
	r.bringUp()
	ctx := b.Context()
	go r.ground.KeepTable(ctx)
	defer func() { r.releaseAll(); r.remove(b.Context()); r.close() }()
	const pods = 200
	netns := make([]*ns.Netns, pods)
	for i := range netns {
		netns[i] = nettest.Pod(b)
	}
	var addWall, delWall, goneWall time.Duration
	each := func(name string, f func(i int)) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		next := make(chan int, pods)
		for i := range pods {
			next <- i
		}
		close(next)
		for range workers {
			wg.Go(func() {
				for i := range next {
					t := time.Now()
					f(i)
					mu.Lock()
					ops[name] = append(ops[name], time.Since(t))
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	for b.Loop() {
		addWall += each("ADD", func(i int) { r.add(request(fmt.Sprint("c", i), netns[i])) })
		start := time.Now()
		delWall += each("DEL", func(i int) { r.del(fmt.Sprint("c", i), false) })
		nettest.Eventually(b, "all are gone", func() bool { return len(r.index.All()) == 0 })
		goneWall += time.Since(start)
	}
	b.ReportMetric(float64(pods*b.N)/addWall.Seconds(), "ADD/s")
	b.ReportMetric(float64(pods*b.N)/delWall.Seconds(), "DEL/s")
	b.ReportMetric(float64(pods*b.N)/goneWall.Seconds(), "gone/s")
	for name, took := range ops {
		sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
		b.Logf("%-20s n %5d  p50 %v  p99 %v", name, len(took), took[len(took)/2], took[len(took)*99/100])
	}
}

// BenchmarkNetworks measures ADD and DEL of pods with one network and with three of Berth's own, by turns, and says how many times as long
// three take, by the medians.
func BenchmarkNetworks(b *testing.B) {
	r := newRig(b, "default=10.88.0.0/16")
	r.cooldown = time.Millisecond
	r.bringUp()
	ctx := b.Context()
	go r.ground.KeepTable(ctx)
	defer func() { r.releaseAll(); r.remove(b.Context()); r.close() }()
	keys := map[string]string{"one": `"mtu":1500`, "three": `"delegates":[{"name":"a","type":"berth-cni"},{"name":"b","type":"berth-cni"},{"name":"c","type":"berth-cni"}]`}
	took := map[string][]time.Duration{}
	pod := nettest.Pod(b)
	for b.Loop() {
		for name, key := range keys {
			start := time.Now()
			r.add(request("c", pod, key))
			added := time.Now()
			r.del("c", false)
			took["ADD "+name] = append(took["ADD "+name], added.Sub(start))
			took["DEL "+name] = append(took["DEL "+name], time.Since(added))
			nettest.Eventually(b, "all to be gone", func() bool { return len(r.index.All()) == 0 })
		}
	}
	median := func(name string) time.Duration {
		all := took[name]
		sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
		return all[len(all)/2]
	}
	for _, verb := range []string{"ADD", "DEL"} {
		one, three := median(verb+" one"), median(verb+" three")
		b.Logf("%s: one network %v, three %v", verb, one, three)
		b.ReportMetric(float64(three)/float64(one), verb+"-ratio")
	}
}
