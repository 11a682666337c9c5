package share

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/api/v1alpha1"
)

// These say what a change is worth, so that whoever watches the API server looks when there is something to do, and
// at nothing else.

// NodeMatters reports whether a change of a Node counts: heartbeats do not.
func NodeMatters(was, is *corev1.Node) bool {
	return was.UID != is.UID || !reflect.DeepEqual(was.Labels, is.Labels) || !reflect.DeepEqual(was.Status.Addresses, is.Status.Addresses)
}

// NetworkMatters reports whether a change of a NodeNetwork counts: what is there for people alone, such as figures, does not.
func NetworkMatters(was, is *v1alpha1.NodeNetwork) bool {
	return was.UID != is.UID || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() || spoken(was) != spoken(is) ||
		!slices.Equal(was.Spec.Blocks, is.Spec.Blocks) || !slices.Equal(was.Status.Held, is.Status.Held) ||
		!slices.Equal(was.Status.Requests, is.Status.Requests) ||
		!slices.Equal(was.Finalizers, is.Finalizers) || !reflect.DeepEqual(was.OwnerReferences, is.OwnerReferences)
}

// NetworkPools returns the pools that a NodeNetwork's change counts for, some of them twice. was or is is nil if the NodeNetwork
// came or went. all: it counts for all pools, because blocks that nobody has are freed once the agents of all nodes have
// written a status.
func NetworkPools(was, is *v1alpha1.NodeNetwork) (names []string, all bool) {
	if was == nil || is == nil || spoken(was) != spoken(is) {
		return nil, true
	}
	for _, n := range []*v1alpha1.NodeNetwork{was, is} {
		for _, r := range n.Status.Requests {
			names = append(names, r.Pool)
		}
		for _, b := range slices.Concat(n.Spec.Blocks, n.Status.Held) {
			names = append(names, b.Pool)
		}
	}
	return names, false
}

// PoolMatters reports whether a change of a pool counts, for the pool itself and for those that want the same addresses.
func PoolMatters(was, is *v1alpha1.IPPool) bool {
	return was.Generation != is.Generation || !reflect.DeepEqual(was.Status.BlockCIDRs, is.Status.BlockCIDRs)
}
