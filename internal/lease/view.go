// Package lease keeps what a node has of the cluster's pools (api/v1alpha1): it takes the blocks that the operator gives to
// the node, gives them back, and says how many addresses the node needs (Keep). It also chooses the pools of pods (Choose).
//
// A lease is an owner in the ledger, as each CIDR of a pool is (ground). The node gives out addresses of a block only
// after the API server has accepted, on the newest version of the NodeNetwork, that the node holds the block
// (NodeNetworkStatus.Held), and the ledger has the lease. So a node that has read an old version, or has been cut off for an
// hour, never uses a block that somebody else has got meanwhile. While the API server is away, the node works with the
// blocks that the ledger has.
package lease

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-net/berth/api/v1alpha1"
)

// Meta is what counts of a pod's or a namespace's metadata.
type Meta struct {
	Namespace string // of a pod
	Name      string
	UID       string            // of a pod, as the runtime knows it
	Pool      string            // annotation v1alpha1.AnnotationPool
	Labels    map[string]string // of a namespace: those that selectors of pools name
}

// mirror is the annotation by which the API server's pod for a static pod says which UID the kubelet knows the pod by.
const mirror = "kubernetes.io/config.mirror"

// MetaOf returns what counts of an object's metadata. keys are the labels that are kept.
func MetaOf(o *metav1.ObjectMeta, keys []string) Meta {
	m := Meta{Namespace: strings.Clone(o.Namespace), Name: strings.Clone(o.Name), UID: strings.Clone(string(o.UID)), Pool: strings.Clone(o.Annotations[v1alpha1.AnnotationPool])}
	if uid := o.Annotations[mirror]; uid != "" {
		m.UID = strings.Clone(uid)
	}
	for _, k := range keys {
		if v, has := o.Labels[k]; has {
			if m.Labels == nil {
				m.Labels = map[string]string{}
			}
			m.Labels[k] = strings.Clone(v)
		}
	}
	return m
}

// key is what a pod or a namespace is found by.
func (m Meta) key() string { return m.Namespace + "/" + m.Name }

// pool is what counts of an IPPool.
type pool struct {
	name        string
	nodes       labels.Selector
	namespaces  labels.Selector
	all         bool // namespaces selects every namespace, known or not
	standard    bool // pods that ask for no pool may get addresses of it
	preAllocate int32
	going       bool // the pool is being deleted
	wrong       error
	short       string // why nodes get no more blocks of it; "": they do
}

// poolOf returns what counts of an IPPool. If a selector is none, it selects nothing.
func poolOf(p *v1alpha1.IPPool) *pool {
	out := &pool{
		name: p.Name, standard: p.Spec.Default, going: p.DeletionTimestamp != nil, all: p.Spec.NamespaceSelector == nil,
		preAllocate: p.Spec.PreAllocate, nodes: labels.Nothing(), namespaces: labels.Nothing(),
	}
	if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionExhausted) {
		b := p.Status.Blocks
		out.short = fmt.Sprintf("IPPool %s has no block left for the node: %d of its %d blocks are given, to %d nodes", p.Name, b.Given, b.Total, b.Nodes)
	}
	if out.preAllocate <= 0 {
		out.preAllocate = halfBlock(p.Spec)
	}
	for _, s := range []struct {
		to   *labels.Selector
		from *metav1.LabelSelector
	}{{&out.nodes, p.Spec.NodeSelector}, {&out.namespaces, p.Spec.NamespaceSelector}} {
		if s.from == nil {
			*s.to = labels.Everything()
			continue
		}
		if chosen, err := metav1.LabelSelectorAsSelector(s.from); err != nil {
			out.wrong = err
		} else {
			*s.to = chosen
		}
	}
	return out
}

// mostPreAllocate is the most that a pool pre-allocates unless it says more.
const mostPreAllocate = 16

// halfBlock returns half of the addresses of a pool's block, of IPv4 if it has any, and at most mostPreAllocate.
func halfBlock(s v1alpha1.IPPoolSpec) int32 {
	host := int32(32 - 26)
	switch {
	case s.IPv4 != nil && s.IPv4.BlockSize > 0:
		host = 32 - s.IPv4.BlockSize
	case s.IPv4 == nil && s.IPv6 != nil && s.IPv6.BlockSize > 0:
		host = 128 - s.IPv6.BlockSize
	}
	if host > 5 {
		return mostPreAllocate
	}
	return min(mostPreAllocate, max(1, int32(1)<<max(host, 0)/2))
}

// View is what the API server has said of pools, pods and namespaces. Its methods may be called concurrently.
type View struct {
	mu         sync.Mutex
	pools      map[string]*pool  // nil: nobody has told of all pools
	pods       map[string]Meta   // of this node; nil: nobody has told of all of them
	namespaces map[string]Meta   // nil: nobody has told of all of them, with the labels that count
	node       map[string]string // labels; nil: nobody has told of this node
	addresses  []netip.Addr
	keys       []string      // labels of namespaces that pools' selectors name, in order
	rekeyed    chan struct{} // closed when keys change
	stir       func()
}

// newView returns a view that knows nothing. stir is called when something has changed that counts for the node's leases.
func newView(stir func()) *View { return &View{rekeyed: make(chan struct{}), stir: stir} }

// Node tells of this node: its labels, and its addresses.
func (v *View) Node(labels map[string]string, addresses []netip.Addr) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.node != nil && maps.Equal(v.node, labels) && slices.Equal(v.addresses, addresses) {
		return
	}
	v.node, v.addresses = map[string]string{}, addresses
	maps.Copy(v.node, labels)
	v.stir()
}

// Pools tells of all pools, PutPool of one that is new or may have changed, and DropPool of one that is gone.
func (v *View) Pools(all []*v1alpha1.IPPool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pools = map[string]*pool{}
	for _, p := range all {
		v.pools[p.Name] = poolOf(p)
	}
	v.rekey(all)
}

// PutPool tells of a pool.
func (v *View) PutPool(p *v1alpha1.IPPool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pools == nil {
		return // Pools will tell
	}
	v.pools[p.Name] = poolOf(p)
	v.rekey([]*v1alpha1.IPPool{p})
}

// DropPool tells that a pool is gone.
func (v *View) DropPool(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.pools, name)
	v.stir()
}

// rekey notes the labels that selectors of pools name. A label that no selector names any more stays: it costs little.
func (v *View) rekey(pools []*v1alpha1.IPPool) {
	v.stir()
	keys := slices.Clone(v.keys)
	for _, p := range pools {
		if s := p.Spec.NamespaceSelector; s != nil {
			keys = slices.AppendSeq(keys, maps.Keys(s.MatchLabels))
			for _, e := range s.MatchExpressions {
				keys = append(keys, e.Key)
			}
		}
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); slices.Equal(keys, v.keys) {
		return
	}
	v.keys, v.namespaces = keys, nil // what is known of namespaces lacks the new labels
	close(v.rekeyed)
	v.rekeyed = make(chan struct{})
}

// NamespaceLabels returns which labels of namespaces count, and a channel that is closed when that changes: then all namespaces
// have to be told anew (Namespaces).
func (v *View) NamespaceLabels() (keys []string, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.keys, v.rekeyed
}

// Namespaces tells of all namespaces, with the labels in keys.
func (v *View) Namespaces(all []Meta, keys []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Equal(keys, v.keys) {
		v.namespaces = tableOf(all)
	}
}

// PutNamespace tells of a namespace, with the labels in keys, and DropNamespace that it is gone.
func (v *View) PutNamespace(m Meta, keys []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.namespaces != nil && slices.Equal(keys, v.keys) {
		v.namespaces[m.key()] = m
	}
}

// DropNamespace tells that a namespace is gone.
func (v *View) DropNamespace(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.namespaces, Meta{Name: name}.key())
}

// Pods tells of all pods of this node, PutPod of one, and DropPod that one is gone.
func (v *View) Pods(all []Meta) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pods = tableOf(all)
}

// PutPod tells of a pod of this node.
func (v *View) PutPod(m Meta) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pods != nil {
		v.pods[m.key()] = m
	}
}

// DropPod tells that a pod is gone. A pod of its name that is there by now stays.
func (v *View) DropPod(m Meta) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pods[m.key()].UID == m.UID {
		delete(v.pods, m.key())
	}
}

func tableOf(all []Meta) map[string]Meta {
	t := make(map[string]Meta, len(all))
	for _, m := range all {
		t[m.key()] = m
	}
	return t
}
