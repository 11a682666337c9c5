package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPPool is a pool of addresses that the cluster's nodes share.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ipp
// +kubebuilder:subresource:status
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPPoolSpec   `json:"spec"`
	Status IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec says which addresses a pool has, and for whom.
type IPPoolSpec struct {
	// IPv4 and IPv6 are the pool's addresses. A pool has at least one family. A pod gets one address of each family.
	IPv4 *Range `json:"ipv4,omitempty"`
	IPv6 *Range `json:"ipv6,omitempty"`
	// NodeSelector selects the nodes that get blocks of the pool; nil: all.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// NamespaceSelector selects the namespaces whose pods may ask for the pool (annotation berth.dev/pool), and get it
	// without asking if Default is true; nil: all.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Default says that pods that ask for no pool may get addresses of this one. Of several such pools a pod gets the first
	// by name that its node and its namespace are selected for.
	Default bool `json:"default,omitempty"`
	// PreAllocate is how many addresses of each family a node has beyond those that are in use, so that a burst of pods
	// waits for nobody. 0 means half a block of IPv4, and at most 16.
	PreAllocate int32 `json:"preAllocate,omitempty"`
}

// Range is what a pool has of one IP family.
type Range struct {
	// CIDRs are the addresses. CIDRs can be added; a CIDR goes only when no node has a block of it.
	CIDRs []string `json:"cidrs"`
	// BlockSize is the prefix length of a block, 26 or 122 if it is 0. It never changes.
	BlockSize int32 `json:"blockSize,omitempty"`
}

// IPPoolStatus is what the operator keeps of a pool. It is the only record of who may have a block: the operator changes it
// before it changes a NodeNetwork, and gives no block that is Given.
type IPPoolStatus struct {
	// Given has the blocks that are taken, by IP family: ranges of numbers in ascending order, such as "0-41,44". The
	// block with number N of a family is the Nth, from 0, of all blocks of the family's CIDRs in the order of BlockCIDRs.
	Given GivenBlocks `json:"given,omitempty"`
	// BlockCIDRs are the CIDRs that numbers in Given count in. CIDRs of the spec are appended, and the last ones go when
	// nothing of them is Given, so that a number means the same block for ever.
	BlockCIDRs BlockCIDRs `json:"blockCIDRs,omitempty"`
	// Pending are blocks that a node gets, and whose NodeNetwork may not say so yet.
	Pending []PendingBlock `json:"pending,omitempty"`
	// Blocks counts the pool's blocks of both families.
	Blocks BlockCount `json:"blocks,omitempty"`
	// Conditions: Ready (nothing is wrong with the pool), Exhausted (a node waits for a block that is not there).
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GivenBlocks are the numbers of blocks that are taken.
type GivenBlocks struct {
	IPv4 string `json:"ipv4,omitempty"`
	IPv6 string `json:"ipv6,omitempty"`
}

// BlockCIDRs are CIDRs in the order in which their blocks are numbered.
type BlockCIDRs struct {
	IPv4 []string `json:"ipv4,omitempty"`
	IPv6 []string `json:"ipv6,omitempty"`
}

// PendingBlock is a block that a node gets.
type PendingBlock struct {
	CIDR string `json:"cidr"`
	Node string `json:"node"`
	UID  string `json:"uid"` // of the NodeNetwork: a Node that was deleted and made anew has another one
}

// BlockCount counts blocks.
type BlockCount struct {
	Total int64 `json:"total"` // math.MaxInt64 if there are more
	Given int64 `json:"given"`
	Nodes int32 `json:"nodes"` // that have blocks
}

// IPPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPPool `json:"items"`
}
