package api

import "time"

// Paths on which nodes of a cluster are probed.
const (
	PathPod  = "pod"  // HTTP from this node's responder to the other node's, as from pod to pod
	PathNode = "node" // ICMP from this node's responder to the other node's own address
)

// ClusterHealth says which nodes of the cluster this node reaches (GET /v1/health/nodes).
type ClusterHealth struct {
	Enabled bool   `json:"enabled"` // false: the configuration wants no probes, or the node belongs to no cluster
	Node    string `json:"node"`    // this node
	// Addresses are those of this node's responder. Error says why it does not answer; then nobody is probed.
	Addresses []string      `json:"addresses"`
	Error     string        `json:"error,omitempty"`
	Interval  time.Duration `json:"interval"` // between two probes of one way, ns
	Probes    []HealthProbe `json:"probes"`   // by node, path and family
}

// HealthProbe says how one way to a node is.
type HealthProbe struct {
	Node      string        `json:"node"`
	Path      string        `json:"path"`   // PathPod or PathNode
	Family    string        `json:"family"` // IPv4 or IPv6
	Address   string        `json:"address"`
	Reachable bool          `json:"reachable"`       // the last probe got its answer; false before the first
	Latency   time.Duration `json:"latency"`         // of the last probe that got its answer, ns
	Tried     time.Time     `json:"tried"`           // when the last probe ended; zero: there was none yet
	Answered  time.Time     `json:"answered"`        // when the last answer came; zero: none has
	Failures  int           `json:"failures"`        // probes since the last answer
	Error     string        `json:"error,omitempty"` // of the last probe
}
