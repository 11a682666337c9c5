package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeNetwork is what one node has of the cluster's pools. It has the Node's name, and the Node owns it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nn
// +kubebuilder:subresource:status
type NodeNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeNetworkSpec   `json:"spec,omitempty"`
	Status NodeNetworkStatus `json:"status,omitempty"`
}

// NodeNetworkSpec is what the operator gives the node.
type NodeNetworkSpec struct {
	// Blocks are the node's blocks, in the order in which the operator gave them.
	Blocks []Block `json:"blocks,omitempty"`
}

// Block is a part of a pool that a node has.
type Block struct {
	Pool string `json:"pool"`
	CIDR string `json:"cidr"`
	// Withdrawn asks the node to give the block back once no pod has an address of it.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// NodeNetworkStatus is what the node's agent says.
type NodeNetworkStatus struct {
	// Requests are how many addresses the node needs of each pool that its pods have asked for.
	Requests []Request `json:"requests,omitempty"`
	// Held are the blocks whose leases the node's ledger has. Nobody else may get a block that is Held.
	Held []Block `json:"held,omitempty"`
	// Addresses are the node's own, as other nodes reach it.
	Addresses []string `json:"addresses,omitempty"`
	// Health are the addresses of the node's health responder, one of each family.
	Health []string `json:"health,omitempty"`
	// Pools are figures for people, at most half a minute old.
	Pools []PoolFigures `json:"pools,omitempty"`
	// Conditions: Ready (the agent has what the node's pods need), Refused (a block that the agent could not take, and why).
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Request is how many addresses a node needs of a pool.
type Request struct {
	Pool string `json:"pool"`
	// Addresses is how many of each family are in use or rest, or wait for an address, and the pool's PreAllocate.
	Addresses int32 `json:"addresses"`
}

// PoolFigures are figures of what a node has of a pool, in addresses of the family that has fewer.
type PoolFigures struct {
	Pool    string `json:"pool"`
	Used    int32  `json:"used"`    // by pods
	Resting int32  `json:"resting"` // until the traffic of their last pods is over
	Free    int32  `json:"free"`
}

// NodeNetworkList is a list of NodeNetworks.
//
// +kubebuilder:object:root=true
type NodeNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeNetwork `json:"items"`
}
