package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of all types of this package.
var GroupVersion = schema.GroupVersion{Group: "berth.dev", Version: "v1alpha1"}

// Annotations and finalizers.
const (
	// AnnotationPool names the pool that a pod wants, or all pods of a namespace that name none themselves.
	AnnotationPool = "berth.dev/pool"
	// Finalizer keeps an IPPool while nodes have blocks of it, and a NodeNetwork while its node may hold blocks.
	Finalizer = "berth.dev/blocks"
)

// Condition types.
const (
	ConditionReady     = "Ready"
	ConditionExhausted = "Exhausted" // of an IPPool
	ConditionRefused   = "Refused"   // of a NodeNetwork
)

// AddToScheme adds the types to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &IPPool{}, &IPPoolList{}, &NodeNetwork{}, &NodeNetworkList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
