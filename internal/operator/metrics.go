package operator

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/share"
)

var passSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
	Name: "berth_operator_pass_seconds", Help: "How long a look at a pool took, with all its writes.",
	Buckets: []float64{.005, .02, .1, .5, 2, 10, 60},
})

var (
	descLeading   = prometheus.NewDesc("berth_operator_leading", "1 while this operator shares the pools out. Others wait, and have no figures of pools.", nil, nil)
	descBlocks    = poolDesc("blocks", "Blocks that a pool has.")
	descGiven     = poolDesc("blocks_given", "Blocks of a pool that nodes have.")
	descNodes     = poolDesc("nodes", "Nodes that have blocks of a pool.")
	descReady     = poolDesc("ready", "1 while nothing is wrong with a pool.")
	descExhausted = poolDesc("exhausted", "1 while a node waits for a block that the pool does not have.")
	descWaiting   = poolDesc("waiting_nodes", "Nodes that have fewer addresses of a pool than they ask for.")
	descWait      = poolDesc("wait_seconds", "How long the node that waits longest has had fewer addresses of a pool than it asks for; 0: none waits.")
)

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("berth_operator_pool_"+name, help, []string{"pool"}, nil)
}

// figures reads the pools' figures from the cache, at each scrape, in the operator that leads. It is a prometheus.Collector.
type figures struct {
	cached  client.Reader
	elected <-chan struct{} // closed when this operator leads
	now     func() time.Time

	mu    sync.Mutex
	waits waits // of the last scrape
}

// waits says since when a node waits for addresses of a pool.
type waits map[wait]time.Time

type wait struct{ node, pool string }

// Describe is prometheus.Collector's.
func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descLeading, descBlocks, descGiven, descNodes, descReady, descExhausted, descWaiting, descWait} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (f *figures) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	select {
	case <-f.elected:
	default:
		gauge(descLeading, 0)
		return
	}
	gauge(descLeading, 1)
	ctx, cancel := context.WithTimeout(context.Background(), scrape)
	defer cancel()
	var pools v1alpha1.IPPoolList
	var networks v1alpha1.NodeNetworkList
	if f.cached.List(ctx, &pools, client.UnsafeDisableDeepCopy) != nil || f.cached.List(ctx, &networks, client.UnsafeDisableDeepCopy) != nil {
		return // the cache is not there yet
	}
	count, longest := f.waiting(&pools, &networks)
	for _, p := range pools.Items {
		b := p.Status.Blocks
		gauge(descBlocks, float64(b.Total), p.Name)
		gauge(descGiven, float64(b.Given), p.Name)
		gauge(descNodes, float64(b.Nodes), p.Name)
		gauge(descReady, is(p, v1alpha1.ConditionReady), p.Name)
		gauge(descExhausted, is(p, v1alpha1.ConditionExhausted), p.Name)
		gauge(descWaiting, float64(count[p.Name]), p.Name)
		gauge(descWait, longest[p.Name].Seconds(), p.Name)
	}
}

// scrape is how long a scrape waits for the cache.
const scrape = 5 * time.Second

// is returns 1 if a condition of a pool is True.
func is(p v1alpha1.IPPool, condition string) float64 {
	if meta.IsStatusConditionTrue(p.Status.Conditions, condition) {
		return 1
	}
	return 0
}

// waiting returns how many nodes wait for addresses of each pool, and for how long the first of them has waited.
func (f *figures) waiting(pools *v1alpha1.IPPoolList, networks *v1alpha1.NodeNetworkList) (count map[string]int, longest map[string]time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	byName := map[string]*v1alpha1.IPPool{}
	for i := range pools.Items {
		byName[pools.Items[i].Name] = &pools.Items[i]
	}
	now, next := f.now(), waits{}
	count, longest = map[string]int{}, map[string]time.Duration{}
	for i := range networks.Items {
		n := &networks.Items[i]
		for _, pool := range share.Short(n, byName) {
			w := wait{n.Name, pool}
			since, waited := f.waits[w]
			if !waited {
				since = now
			}
			next[w] = since
			count[pool]++
			longest[pool] = max(longest[pool], now.Sub(since))
		}
	}
	f.waits = next
	return count, longest
}
