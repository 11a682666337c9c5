package routes

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/api"
)

// In a small cluster each way has series. In a large one only silent ways have some, and not more than mostPeers; the figures of
// all ways count all.
func TestHealthOfManyNodes(t *testing.T) {
	for _, c := range []struct{ ways, silent, series int }{
		{mostPeers, 3, mostPeers},
		{mostPeers + 1, 3, 3},
		{3 * mostPeers, 2 * mostPeers, mostPeers},
	} {
		h := api.ClusterHealth{Enabled: true}
		for i := range c.ways {
			h.Probes = append(h.Probes, api.HealthProbe{Node: fmt.Sprint(i), Path: api.PathPod, Family: "IPv4", Tried: time.Unix(1, 0), Reachable: i >= c.silent})
		}
		series := 0
		collectHealth(h, func(d *prometheus.Desc, v float64, labels ...string) {
			switch {
			case d == descPeer:
				series++
			case d == descWays && labels[0] == api.PathPod && v != float64(c.ways), d == descSilent && labels[0] == api.PathPod && v != float64(c.silent):
				t.Errorf("of %d ways, %d silent: %s is %v", c.ways, c.silent, d, v)
			}
		})
		if series != c.series {
			t.Errorf("of %d ways, %d silent, %d have series, want %d", c.ways, c.silent, series, c.series)
		}
	}
}
