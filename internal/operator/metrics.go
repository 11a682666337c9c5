package operator

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/api/v1alpha1"
)

var (
	passSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "berth_operator_pass_seconds", Help: "How long a look at a pool took, with all its writes.",
		Buckets: []float64{.005, .02, .1, .5, 2, 10, 60},
	})
	poolBlocks = gauge("blocks", "How many blocks a pool has.")
	poolGiven  = gauge("blocks_given", "How many blocks of a pool nodes have.")
	poolNodes  = gauge("nodes", "How many nodes have blocks of a pool.")
	poolReady  = gauge("ready", "1 if nothing is wrong with a pool.")
)

func gauge(name, help string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "berth_operator_pool_" + name, Help: help}, []string{"pool"})
}

// measure sets the gauges of all pools, as the cache has them.
func measure(ctx context.Context, cached client.Reader) error {
	var l v1alpha1.IPPoolList
	if err := cached.List(ctx, &l, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	for _, g := range []*prometheus.GaugeVec{poolBlocks, poolGiven, poolNodes, poolReady} {
		g.Reset()
	}
	for _, p := range l.Items {
		b := p.Status.Blocks
		poolBlocks.WithLabelValues(p.Name).Set(float64(b.Total))
		poolGiven.WithLabelValues(p.Name).Set(float64(b.Given))
		poolNodes.WithLabelValues(p.Name).Set(float64(b.Nodes))
		ready := 0.0
		if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady) {
			ready = 1
		}
		poolReady.WithLabelValues(p.Name).Set(ready)
	}
	return nil
}
