package share_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
	"github.com/berth-net/berth/internal/share/apitest"
)

// BenchmarkScale has ten thousand nodes that have 100,000 blocks, on an API server in memory. It measures a request for one
// more block at that size, and says what the first 100,000 took.
func BenchmarkScale(b *testing.B) {
	const nodes, each = 10_000, 10
	ctx := context.Background()
	server := apitest.New()
	c := &apitest.Client{Server: server, Cache: server.Cache(0)}
	s := share.New(c, quiet)
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.IPPoolSpec{IPv4: &v1alpha1.Range{CIDRs: []string{"10.0.0.0/8"}}}}
	must(b, server.Create(pool))
	for i := range nodes {
		name := fmt.Sprintf("node-%05d", i)
		must(b, server.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		must(b, s.Node(ctx, name))
		request(b, server, name, 62*each)
	}
	c.Cache.Advance(1 << 30)
	before, began, passes := server.Writes(), time.Now(), 0
	look := func() {
		again := true
		for again {
			var err error
			again, err = s.Pool(ctx, "a")
			must(b, err)
			c.Cache.Advance(1 << 30)
			passes++
		}
	}
	look()
	took := time.Since(began)
	given := apitest.Get[*v1alpha1.IPPool](server, "a").Status.Blocks.Given
	if given != nodes*each {
		b.Fatalf("%d blocks are given", given)
	}
	writes := float64(server.Writes()-before) / float64(given)
	status := len(apitest.Get[*v1alpha1.IPPool](server, "a").Status.Given.IPv4)
	var memory runtime.MemStats
	turn := 0
	for b.Loop() {
		name := fmt.Sprintf("node-%05d", turn%nodes)
		turn++
		request(b, server, name, int32(62*(each+turn/nodes+1)))
		c.Cache.Advance(1 << 30)
		look()
	}
	runtime.GC()
	runtime.ReadMemStats(&memory)
	runtime.KeepAlive(c)
	runtime.KeepAlive(s)
	b.ReportMetric(float64(took.Milliseconds())/1000, "s/100k-blocks")
	b.ReportMetric(writes, "writes/block")
	b.ReportMetric(float64(status), "bytes-of-given")
	b.ReportMetric(float64(memory.HeapAlloc>>20), "MB-heap-with-the-API-server")
}

func request(b *testing.B, server *apitest.Server, name string, addresses int32) {
	n := apitest.Get[*v1alpha1.NodeNetwork](server, name).DeepCopy()
	n.Status.Requests = []v1alpha1.Request{{Pool: "a", Addresses: addresses}}
	n.Status.Addresses = []string{"192.0.2.1"}
	must(b, server.Update(n, true))
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
