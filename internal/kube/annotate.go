package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations of a Node that say which addresses the node's responder has (package health).
const (
	AnnotationHealth4 = "berth.dev/ipv4-health-ip"
	AnnotationHealth6 = "berth.dev/ipv6-health-ip"
)

// Annotate writes annotations of this node's Node; nil takes an annotation away. The request goes to the subresource status,
// by which a client can change a Node's annotations and nothing of its spec: the agent's right to it lets nobody cordon or
// taint nodes.
//
//	kubectl annotate --overwrite node NAME KEY=VALUE KEY-
func (w *Watcher) Annotate(ctx context.Context, annotations map[string]*string) error {
	return w.patchStatus(ctx, map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

// patchStatus merges a patch (RFC 7386) into this node's Node, by its subresource status.
func (w *Watcher) patchStatus(ctx context.Context, patch any) error {
	raw, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("patching node %s: %w", w.Node, err)
	}
	err = w.client.Patch(types.MergePatchType).Resource("nodes").Name(w.Node).SubResource("status").Body(raw).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("patching node %s: %w", w.Node, err)
	}
	return nil
}

// responder returns the addresses of a node's responder, as its annotations say. An address that is not among those of the
// node's pods does not count: nobody can have all nodes probe somebody else by an annotation.
func (w *Watcher) responder(n *corev1.Node, cidrs []netip.Prefix) (addrs []netip.Addr) {
	for _, key := range []string{AnnotationHealth4, AnnotationHealth6} {
		text, ok := n.Annotations[key]
		if !ok {
			continue
		}
		addr, err := netip.ParseAddr(text)
		ours := func(c netip.Prefix) bool { return c.Contains(addr) }
		if err != nil || addr.Is4() != (key == AnnotationHealth4) || !slices.ContainsFunc(cidrs, ours) {
			w.Log.Debug("an annotation names no address of the node's pods", "node", n.Name, "annotation", key, "says", text)
			continue
		}
		addrs = append(addrs, addr)
	}
	return addrs
}
