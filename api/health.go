package api

import "time"

// Paths on which nodes of a cluster are probed.
const (
	PathPod  = "pod"  // HTTP from this node's responder to the other node's, as from pod to pod
	PathNode = "node" // ICMP from this node's responder to the other node's own address
)

// ClusterStatus says how a node's part of its cluster is.
type ClusterStatus struct {
	Node          string            `json:"node"`               // this node
	UnroutedNodes int               `json:"unroutedNodes"`      // other nodes to whose pods the agent could not make a way
	Unrouted      []UnroutedNode    `json:"unrouted,omitempty"` // at most 100 of them, by name
	Lacks         string            `json:"lacks,omitempty"`    // why the node has not the addresses that the cluster means it to have, or what of that is not done yet
	Failures      []string          `json:"failures,omitempty"` // what the API server does not tell the agent at the moment, since when and why
	Events        map[string]uint64 `json:"events"`             // what became of Events for the cluster's people: how many, by ClusterEventResults
}

// UnroutedNode is another node to whose pods the agent could not make a way, and why.
type UnroutedNode struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// What became of an Event, or of a repetition, that the agent had for the cluster's people.
const (
	ClusterEventWritten = "written"
	ClusterEventRetried = "retried" // the API server failed, or did not answer; the agent tries again, and nothing is lost by that
	ClusterEventRefused = "refused" // the API server does not take it, such as because the agent lacks the right
	ClusterEventDropped = "dropped" // too many Events waited already, or this one waited for an hour
)

// ClusterEventResults lists them.
func ClusterEventResults() []string {
	return []string{ClusterEventWritten, ClusterEventRetried, ClusterEventRefused, ClusterEventDropped}
}

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
