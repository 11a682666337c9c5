package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// A column shows only the first of what its path finds: a path with [*] would hide the others. A list as a whole is shown as JSON.

// NodeNetwork is what one node has of the cluster's pools. It has the Node's name, and the Node owns it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nn
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Refused",type=string,JSONPath=`.status.conditions[?(@.type=="Refused")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addresses`,priority=1
// +kubebuilder:printcolumn:name="Figures",type=string,JSONPath=`.status.pools`,priority=1
// +kubebuilder:printcolumn:name="Blocks",type=string,JSONPath=`.spec.blocks`,priority=1
type NodeNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeNetworkSpec   `json:"spec,omitempty"`
	Status NodeNetworkStatus `json:"status,omitempty"`
}

// NodeNetworkSpec is what the operator gives the node.
type NodeNetworkSpec struct {
	// Blocks are the node's blocks, in the order in which the operator gave them.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=cidr
	Blocks []Block `json:"blocks,omitempty"`
}

// Block is a part of a pool that a node has.
type Block struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool"`
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="cidr is a CIDR such as 10.64.0.0/26"
	CIDR string `json:"cidr"`
	// Withdrawn asks the node to give the block back once no pod has an address of it.
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// NodeNetworkStatus is what the node's agent says. It does not say which other nodes the node reaches: each agent hears of all
// NodeNetworks, so one node that dies would cost a cluster of N nodes N writes and N times N messages. `berth health`, the metrics and the
// alerts of each node say it. The addresses of the node's health responder are in annotations of its Node, where clusters without
// pools have them, too.
type NodeNetworkStatus struct {
	// Requests are how many addresses the node needs of each pool that its pods have asked for.
	//
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=pool
	Requests []Request `json:"requests,omitempty"`
	// Held are the blocks whose leases the node's ledger has, all of them from the first status of an object on. Nobody
	// else may get a block that is Held.
	//
	// +kubebuilder:validation:MaxItems=1024
	// +listType=map
	// +listMapKey=cidr
	Held []Block `json:"held,omitempty"`
	// Addresses are the node's own, as other nodes reach it.
	//
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`
	// Pools are figures for people: at most half a minute old, and up to ten minutes in a cluster of more than 200 nodes.
	//
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=pool
	Pools []PoolFigures `json:"pools,omitempty"`
	// Conditions: Ready (the agent has what the node's pods need), Refused (a block that the agent could not take, and why).
	//
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Request is how many addresses a node needs of a pool.
type Request struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool"`
	// Addresses is how many of each family are in use or rest, or wait for an address, and the pool's PreAllocate.
	//
	// +kubebuilder:validation:Minimum=0
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
