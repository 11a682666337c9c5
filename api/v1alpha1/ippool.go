package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPPool is a pool of addresses that the cluster's nodes share.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ipp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="IPv4",type=string,JSONPath=`.spec.ipv4.cidrs`
// +kubebuilder:printcolumn:name="IPv6",type=string,JSONPath=`.spec.ipv6.cidrs`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="Blocks",type=integer,JSONPath=`.status.blocks.total`
// +kubebuilder:printcolumn:name="Given",type=integer,JSONPath=`.status.blocks.given`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.blocks.nodes`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Exhausted",type=string,JSONPath=`.status.conditions[?(@.type=="Exhausted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPPoolSpec   `json:"spec"`
	Status IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec says which addresses a pool has, and for whom.
//
// +kubebuilder:validation:XValidation:rule="has(self.ipv4) || has(self.ipv6)",message="a pool has ipv4, ipv6 or both"
// +kubebuilder:validation:XValidation:rule="(!has(oldSelf.ipv4) || has(self.ipv4)) && (!has(oldSelf.ipv6) || has(self.ipv6))",message="a pool keeps its IP families; delete it, or take CIDRs out"
type IPPoolSpec struct {
	// IPv4 are the pool's IPv4 addresses. A pool has at least one family. A pod gets one address of each family.
	//
	// +kubebuilder:validation:XValidation:rule="self.cidrs.all(c, isCIDR(c) && cidr(c).ip().family() == 4 && string(cidr(c).masked()) == c)",message="cidrs of ipv4 are IPv4 CIDRs by their first address, such as 10.64.0.0/12"
	// +kubebuilder:validation:XValidation:rule="!has(self.blockSize) || self.blockSize == 0 || self.blockSize >= 16 && self.blockSize <= 32",message="blockSize of ipv4 is 16 to 32, or 0 for 26"
	// +kubebuilder:validation:XValidation:rule="self.cidrs.all(c, !isCIDR(c) || cidr(c).prefixLength() <= (has(self.blockSize) && self.blockSize != 0 ? self.blockSize : 26))",message="a CIDR has at least one block: its prefix is not longer than blockSize"
	// +kubebuilder:validation:XValidation:rule="(has(self.blockSize) && self.blockSize != 0 ? self.blockSize : 26) == (has(oldSelf.blockSize) && oldSelf.blockSize != 0 ? oldSelf.blockSize : 26)",message="blockSize never changes; make another pool"
	IPv4 *Range `json:"ipv4,omitempty"`
	// IPv6 are the pool's IPv6 addresses.
	//
	// +kubebuilder:validation:XValidation:rule="self.cidrs.all(c, isCIDR(c) && cidr(c).ip().family() == 6 && string(cidr(c).masked()) == c)",message="cidrs of ipv6 are IPv6 CIDRs by their first address, in lower case, such as fd00:64::/48"
	// +kubebuilder:validation:XValidation:rule="!has(self.blockSize) || self.blockSize == 0 || self.blockSize >= 64 && self.blockSize <= 128",message="blockSize of ipv6 is 64 to 128, or 0 for 122"
	// +kubebuilder:validation:XValidation:rule="self.cidrs.all(c, !isCIDR(c) || cidr(c).prefixLength() <= (has(self.blockSize) && self.blockSize != 0 ? self.blockSize : 122))",message="a CIDR has at least one block: its prefix is not longer than blockSize"
	// +kubebuilder:validation:XValidation:rule="(has(self.blockSize) && self.blockSize != 0 ? self.blockSize : 122) == (has(oldSelf.blockSize) && oldSelf.blockSize != 0 ? oldSelf.blockSize : 122)",message="blockSize never changes; make another pool"
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
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	PreAllocate int32 `json:"preAllocate,omitempty"`
}

// Range is what a pool has of one IP family.
type Range struct {
	// CIDRs are the addresses. CIDRs can be added. Of a CIDR that is taken out nodes get no more blocks, and those that
	// they have are withdrawn; the CIDR is gone when they have all come back. Of each CIDR the first 2^32 blocks are used.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=set
	CIDRs []string `json:"cidrs"`
	// BlockSize is the prefix length of a block, 26 or 122 if it is 0. It never changes. As on any network, the first
	// address of a block is no pod's, and the last one of IPv4 neither, unless the block has only one or two.
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
	//
	// +listType=atomic
	Pending []PendingBlock `json:"pending,omitempty"`
	// Blocks counts the pool's blocks of both families.
	Blocks BlockCount `json:"blocks,omitempty"`
	// Conditions: Ready (nothing is wrong with the pool), Exhausted (a node waits for a block that is not there).
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GivenBlocks are the numbers of blocks that are taken.
type GivenBlocks struct {
	IPv4 string `json:"ipv4,omitempty"`
	IPv6 string `json:"ipv6,omitempty"`
}

// BlockCIDRs are CIDRs in the order in which their blocks are numbered.
type BlockCIDRs struct {
	// +listType=atomic
	IPv4 []string `json:"ipv4,omitempty"`
	// +listType=atomic
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
	Total int64 `json:"total"`
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
