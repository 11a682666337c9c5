package routes

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/api"
)

var (
	descWays      = prometheus.NewDesc("berth_health_ways", "Ways to other nodes of the cluster that the agent has probed.", []string{"path"}, nil)
	descSilent    = prometheus.NewDesc("berth_health_unreachable_ways", "Ways to other nodes whose last probe got no answer.", []string{"path"}, nil)
	descResponder = prometheus.NewDesc("berth_health_responder_failing", "1 while this node's own responder does not answer, and the agent probes nobody.", nil, nil)
	peerLabels    = []string{"peer", "path", "family"}
	descPeer      = prometheus.NewDesc("berth_health_peer_reachable", "1 if the last probe of a way to another node got its answer.", peerLabels, nil)
	descLatency   = prometheus.NewDesc("berth_health_peer_latency_seconds", "How long the last answer by a way to another node took.", peerLabels, nil)
)

// mostPeers is how many ways have series of their own. Each node has those of all others, so their number in the cluster grows with
// the square of its nodes.
const mostPeers = 400

// collectHealth gives the figures of all ways and, in a cluster that is not too large, those of each way. In a larger one, only ways
// that do not answer have series, mostPeers of them at most.
func collectHealth(h api.ClusterHealth, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(descResponder, flag(h.Error != ""))
	ways, silent := map[string]int{}, map[string]int{}
	large, shown := len(h.Probes) > mostPeers, 0
	for _, p := range h.Probes {
		if p.Tried.IsZero() {
			continue
		}
		ways[p.Path]++
		if !p.Reachable {
			silent[p.Path]++
		}
		if shown == mostPeers || large && p.Reachable {
			continue
		}
		shown++
		gauge(descPeer, flag(p.Reachable), p.Node, p.Path, p.Family)
		if p.Reachable {
			gauge(descLatency, p.Latency.Seconds(), p.Node, p.Path, p.Family)
		}
	}
	for _, path := range []string{api.PathNode, api.PathPod} {
		gauge(descWays, float64(ways[path]), path)
		gauge(descSilent, float64(silent[path]), path)
	}
}
