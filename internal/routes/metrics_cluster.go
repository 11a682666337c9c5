package routes

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/api"
)

var (
	descUnrouted = prometheus.NewDesc("berth_cluster_unrouted_nodes", "Other nodes of the cluster to whose pods the agent could not make a way.", nil, nil)
	descFailures = prometheus.NewDesc("berth_cluster_api_failures", "Things that the API server does not tell the agent at the moment, such as which nodes there are.", nil, nil)
	descEvents   = prometheus.NewDesc("berth_cluster_events_total", "Events of Kubernetes that the agent had for people: the API server has them (written), has failed and is asked again (retried), does not take them (refused), or they waited for too long or were too many (dropped).", []string{"result"}, nil)
)

// collectCluster gives the figures of a node's part of its cluster. A node that belongs to none has them, with 0.
func collectCluster(c *api.ClusterStatus, ch chan<- prometheus.Metric) {
	if c == nil {
		c = &api.ClusterStatus{}
	}
	ch <- prometheus.MustNewConstMetric(descUnrouted, prometheus.GaugeValue, float64(c.UnroutedNodes))
	ch <- prometheus.MustNewConstMetric(descFailures, prometheus.GaugeValue, float64(len(c.Failures)))
	for _, result := range api.ClusterEventResults() {
		ch <- prometheus.MustNewConstMetric(descEvents, prometheus.CounterValue, float64(c.Events[result]), result)
	}
}
