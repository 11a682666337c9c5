package share

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-net/berth/api/v1alpha1"
)

// Node sees to it that a node has its NodeNetwork, and that one whose Node has gone, goes.
func (s *Sharer) Node(ctx context.Context, name string) error {
	network, err := s.Network(ctx, name)
	if err != nil {
		return fmt.Errorf("reading the NodeNetwork %s: %w", name, err)
	}
	node, err := s.API.Node(ctx, name)
	if err != nil {
		return fmt.Errorf("reading the Node %s: %w", name, err)
	}
	switch {
	case network == nil && (node == nil || !s.Select.Matches(labels.Set(node.Labels))):
		return nil
	case network == nil:
		return s.create(ctx, node)
	case !network.DeletionTimestamp.IsZero():
		return s.end(ctx, network, node)
	case node == nil || ownerOf(network) != node.UID && ownerOf(network) != "":
		if err := s.DeleteNetwork(ctx, name, network.UID); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the NodeNetwork %s, whose Node has gone: %w", name, err)
		}
		return nil
	default:
		return s.repair(ctx, network, node)
	}
}

// Settled reports whether Node would find nothing to do, by what a cache has: most of what it hears of is settled.
func Settled(network *v1alpha1.NodeNetwork, node *corev1.Node) bool {
	return network != nil && node != nil && network.DeletionTimestamp.IsZero() && ownerOf(network) == node.UID &&
		slices.Contains(network.Finalizers, v1alpha1.Finalizer)
}

// create makes a node's NodeNetwork.
func (s *Sharer) create(ctx context.Context, node *corev1.Node) error {
	n := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, Finalizers: []string{v1alpha1.Finalizer}, OwnerReferences: []metav1.OwnerReference{owner(node)},
	}}
	if err := s.CreateNetwork(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the NodeNetwork %s: %w", node.Name, err)
	}
	return nil
}

func owner(node *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// repair gives a NodeNetwork back what somebody has taken out of its metadata.
func (s *Sharer) repair(ctx context.Context, network *v1alpha1.NodeNetwork, node *corev1.Node) error {
	fixed := network.DeepCopy()
	if !slices.Contains(fixed.Finalizers, v1alpha1.Finalizer) {
		fixed.Finalizers = append(fixed.Finalizers, v1alpha1.Finalizer)
	}
	if ownerOf(fixed) == "" {
		fixed.OwnerReferences = append(fixed.OwnerReferences, owner(node))
	}
	if len(fixed.Finalizers) == len(network.Finalizers) && len(fixed.OwnerReferences) == len(network.OwnerReferences) {
		return nil
	}
	if err := s.UpdateNetwork(ctx, fixed); err != nil {
		return fmt.Errorf("repairing the NodeNetwork %s: %w", network.Name, err)
	}
	return nil
}

// end lets a NodeNetwork that is being deleted go: if its Node has gone, or if the node has no block. Both were read live,
// and the NodeNetwork first, so that what it says of its Node cannot be older than the Node. A node that is there, and holds
// blocks, keeps its NodeNetwork and all that this gives it.
func (s *Sharer) end(ctx context.Context, network *v1alpha1.NodeNetwork, node *corev1.Node) error {
	if !slices.Contains(network.Finalizers, v1alpha1.Finalizer) {
		return nil
	}
	left := node == nil || node.UID != ownerOf(network)
	if !left && (len(network.Spec.Blocks) > 0 || len(network.Status.Held) > 0) {
		s.Event(network, "NodeHoldsBlocks", "the node is there and has blocks: its NodeNetwork stays until it has none, or the Node is deleted")
		return nil
	}
	n := network.DeepCopy()
	n.Finalizers = slices.DeleteFunc(n.Finalizers, func(f string) bool { return f == v1alpha1.Finalizer })
	if err := s.UpdateNetwork(ctx, n); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("letting the NodeNetwork %s go: %w", network.Name, err)
	}
	if left {
		s.depart(network)
	}
	return nil
}

// depart notes that all blocks of a NodeNetwork have come back: its Node has gone for certain.
func (s *Sharer) depart(network *v1alpha1.NodeNetwork) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.departed) >= maxDeparted {
		clear(s.departed) // what is forgotten is freed once the agents of all nodes have written a status
	}
	s.departed[network.UID] = true
	for _, b := range slices.Concat(network.Spec.Blocks, network.Status.Held) {
		if cidr, err := netip.ParsePrefix(b.CIDR); err == nil && s.returned[b.Pool] != nil {
			s.returned[b.Pool].blocks[cidr] = true
		}
	}
}
