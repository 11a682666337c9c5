package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/internal/kernel/wireguard"
	"github.com/berth-net/berth/internal/peers"
)

// The annotations of a Node that say which addresses the node's responder has (package health).
const (
	AnnotationHealth4 = "berth.dev/ipv4-health-ip"
	AnnotationHealth6 = "berth.dev/ipv6-health-ip"
)

// The annotations of a Node by which other nodes' WireGuard devices reach that of the node: its public key in base64, and its UDP
// port.
const (
	AnnotationWireGuardKey  = "berth.dev/wireguard-public-key"
	AnnotationWireGuardPort = "berth.dev/wireguard-port"
)

// annotations are those that Berth reads of Nodes.
var annotations = []string{AnnotationHealth4, AnnotationHealth6, AnnotationWireGuardKey, AnnotationWireGuardPort}

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
	err = w.core.Patch(types.MergePatchType).Resource("nodes").Name(w.Node).SubResource("status").Body(raw).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("patching node %s: %w", w.Node, err)
	}
	return nil
}

// claimed returns the addresses of a node's responder, as the node's annotations say.
func (w *Watcher) claimed(n *corev1.Node) (addrs []netip.Addr) {
	for _, key := range []string{AnnotationHealth4, AnnotationHealth6} {
		text, ok := n.Annotations[key]
		if !ok {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Is4() != (key == AnnotationHealth4) {
			w.Log.Debug("an annotation names no address of its family", "node", n.Name, "annotation", key, "says", text)
			continue
		}
		addrs = append(addrs, addr)
	}
	return addrs
}

// sealed returns how other nodes' WireGuard devices reach that of a node, as the node's annotations say; the zero value, if they say
// nothing that can be.
func (w *Watcher) sealed(n *corev1.Node) (wg peers.WireGuard) {
	key, port := n.Annotations[AnnotationWireGuardKey], n.Annotations[AnnotationWireGuardPort]
	if key == "" && port == "" {
		return wg
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err = cmp.Or(wireguard.CheckKey(key), err); err != nil || number == 0 {
		w.Log.Warn("the annotations of a node name no WireGuard key and port", "node", n.Name, "key", fmt.Sprintf("%.60q", key), "port", fmt.Sprintf("%.20q", port), "err", err)
		return wg
	}
	return peers.WireGuard{PublicKey: strings.Clone(key), Port: uint16(number)}
}

// within returns those of a responder's addresses that are among the addresses of its node's pods. Others do not count: nobody can
// have all nodes probe somebody else by an annotation.
func within(claimed []netip.Addr, cidrs []netip.Prefix) (addrs []netip.Addr) {
	for _, a := range claimed {
		if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) }) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Responder returns the addresses of this node's responder, as the annotations of its Node say, if they are of these blocks.
func (w *Watcher) Responder(blocks []netip.Prefix) []netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return within(w.mine, blocks)
}

// Sealed returns what the annotations of this node's Node say of its WireGuard device.
func (w *Watcher) Sealed() peers.WireGuard {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.key
}
