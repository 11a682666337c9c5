package api

import "time"

// ClusterPods says which pods of this node the cluster's API server has (GET /v1/cluster/pods). The agent asks the API server for
// each answer, by a read that cannot be older than the question: the API server has no pod on this node that Pods lacks.
type ClusterPods struct {
	Enabled bool      `json:"enabled"` // false: the node belongs to no cluster, and nobody was asked
	Node    string    `json:"node"`    // this node
	Asked   time.Time `json:"asked"`   // when the agent asked
	Version string    `json:"version"` // the resourceVersion of the API server's answer
	Pods    []Pod     `json:"pods"`    // a static pod has the UID by which kubelet and runtime know the pod
}
