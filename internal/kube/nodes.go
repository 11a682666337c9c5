package kube

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/internal/peers"
)

// self notes what the cluster has given to this node.
func (w *Watcher) self(n *corev1.Node) {
	if w.Leases != nil {
		w.condition.saw(n, nil)
		w.mu.Lock()
		w.mine, w.key = w.claimed(n), w.sealed(n)
		w.mu.Unlock()
		w.Leases.View().Node(n.Labels, addresses(n))
		w.Leases.Stir()
		return
	}
	cidrs, err := podCIDRs(n)
	w.condition.saw(n, cidrs)
	w.cidrs.saw(cidrs, err, time.Now())
	switch {
	case err != nil:
		w.Log.Error("the cluster gives this node CIDRs for its pods that are none", "err", err)
		return
	case len(cidrs) == 0: // not yet, as with each new Node, or the Node was made anew: what the node had stays
		w.Log.Info("the cluster has given this node no CIDRs for its pods yet (Node.spec.podCIDRs); it never will unless its controller manager has --allocate-node-cidrs", "node", n.Name)
		return
	}
	w.Others.Self(peers.Node{Name: n.Name, CIDRs: cidrs, Addresses: addresses(n), Health: within(w.claimed(n), cidrs), WireGuard: w.sealed(n)})
	stir(w.cidrs.wake)
}

// other returns another node. ok is false for this node, and for a node that has no pods' CIDRs or no address yet.
func (w *Watcher) other(n *corev1.Node) (node peers.Node, ok bool) {
	if n.Name == w.Node {
		return node, false
	}
	cidrs, err := podCIDRs(n)
	if err != nil {
		w.Log.Warn("the CIDRs of another node's pods are none", "node", n.Name, "err", err)
		return node, false
	}
	node = peers.Node{Name: n.Name, CIDRs: cidrs, Addresses: addresses(n), Health: within(w.claimed(n), cidrs), WireGuard: w.sealed(n), Boot: n.Status.NodeInfo.BootID}
	return node, len(node.CIDRs) > 0 && len(node.Addresses) > 0
}

// podCIDRs returns the CIDRs of a node's pods, in order.
func podCIDRs(n *corev1.Node) (cidrs []netip.Prefix, err error) {
	texts := n.Spec.PodCIDRs
	if len(texts) == 0 && n.Spec.PodCIDR != "" {
		texts = []string{n.Spec.PodCIDR}
	}
	for _, text := range texts {
		c, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		cidrs = append(cidrs, c.Masked())
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	return cidrs, nil
}

// addresses returns a node's own addresses, those of the cluster's network first.
func addresses(n *corev1.Node) (addrs []netip.Addr) {
	for _, sort := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == sort && !has(addrs, addr.Unmap()) {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs
}

// has reports whether there is an address of addr's family already.
func has(addrs []netip.Addr, addr netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == addr.Is4() })
}

func (w *Watcher) place(n *corev1.Node) place {
	return place{addresses(n), w.claimed(n), w.sealed(n), n.Status.NodeInfo.BootID}
}

// nodeStore hands the nodes that a reflector reads on, and keeps none. If pods have addresses of the cluster's pools, the
// nodes tell only where they are themselves (ways).
type nodeStore struct {
	*Watcher
	guard
}

func (s *nodeStore) Add(o any) error { return s.Update(o) }

// Transformer keeps of a node what counts here, while a reflector collects all nodes.
func (*nodeStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		n, ok := o.(*corev1.Node)
		if !ok {
			return o, nil
		}
		own := map[string]string{}
		for _, key := range annotations {
			if text, ok := n.Annotations[key]; ok {
				own[key] = text
			}
		}
		network := slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type != corev1.NodeNetworkUnavailable })
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion, Labels: n.Labels, Annotations: own},
			Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
			Status:     corev1.NodeStatus{Addresses: n.Status.Addresses, Conditions: network, NodeInfo: corev1.NodeSystemInfo{BootID: n.Status.NodeInfo.BootID}},
		}, nil
	}
}

func (s *nodeStore) Update(o any) error {
	n, ok := o.(*corev1.Node)
	if ok {
		s.note(n.ResourceVersion)
	}
	switch {
	case !ok:
	case n.Name == s.Node:
		s.self(n)
	case s.Leases != nil:
		s.ways.node(n.Name, s.place(n))
	default:
		if node, ok := s.other(n); ok {
			s.Others.Put(node)
		} else {
			s.Others.Drop(n.Name)
		}
	}
	return nil
}

func (s *nodeStore) Delete(o any) error {
	n, ok := o.(*corev1.Node)
	if ok {
		s.note(n.ResourceVersion)
	}
	switch {
	case !ok || n.Name == s.Node:
	case s.Leases != nil:
		s.ways.node(n.Name, place{})
	default:
		s.Others.Drop(n.Name)
	}
	return nil
}

// Replace takes a list of all nodes. The reflector asks for another list if it returns an error.
func (s *nodeStore) Replace(all []any, version string) error {
	err := s.fresh(version, time.Now())
	s.fails.noteOld(s.what, err)
	if err != nil {
		return err
	}
	s.newest = version
	var others []peers.Node
	where := map[string]place{}
	for _, o := range all {
		n, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		if n.Name == s.Node {
			s.self(n)
		} else if s.Leases != nil {
			where[n.Name] = s.place(n)
		} else if node, ok := s.other(n); ok {
			others = append(others, node)
		}
	}
	if s.Leases != nil {
		s.ways.nodes(where)
		return nil
	}
	s.Others.All(others)
	return nil
}

func (*nodeStore) Resync() error { return nil }
