package kube

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/peers"
)

// network and ippool are Berth's objects as a reflector reads them, and networkList and ippoolList are lists of them. Their
// copies are shallow: nobody changes an object that the API server has sent.
type (
	network     struct{ v1alpha1.NodeNetwork }
	ippool      struct{ v1alpha1.IPPool }
	networkList struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`
		Items           []network `json:"items"`
	}
	ippoolList struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`
		Items           []ippool `json:"items"`
	}
)

func (o *network) DeepCopyObject() runtime.Object     { c := *o; return &c }
func (o *ippool) DeepCopyObject() runtime.Object      { c := *o; return &c }
func (o *networkList) DeepCopyObject() runtime.Object { c := *o; return &c }
func (o *ippoolList) DeepCopyObject() runtime.Object  { c := *o; return &c }

// addTypes tells a scheme of Berth's objects.
func addTypes(s *runtime.Scheme) {
	for kind, o := range map[string]runtime.Object{"NodeNetwork": &network{}, "NodeNetworkList": &networkList{}, "IPPool": &ippool{}, "IPPoolList": &ippoolList{}} {
		s.AddKnownTypeWithName(v1alpha1.GroupVersion.WithKind(kind), o)
	}
	metav1.AddToGroupVersion(s, v1alpha1.GroupVersion)
}

// ways joins what two watches tell of other nodes: a Node has the addresses, and a NodeNetwork the blocks. The addresses are not
// taken from the NodeNetwork, which any node's agent may write: a Node's addresses are its kubelet's word alone.
type ways struct {
	to    Others
	mu    *sync.Mutex
	where map[string]place          // nil: nobody has told of all Nodes
	what  map[string][]netip.Prefix // nil: nobody has told of all NodeNetworks
}

// place is where a node is, where its responder says to be, what it says of its WireGuard device, and its boot's id. The zero place: nowhere.
type place struct {
	addresses, responder []netip.Addr
	key                  peers.WireGuard
	boot                 string
}

func (p place) is(o place) bool {
	return slices.Equal(p.addresses, o.addresses) && slices.Equal(p.responder, o.responder) && p.key == o.key && p.boot == o.boot
}

func newWays(to Others) ways { return ways{to: to, mu: new(sync.Mutex)} }

// node tells of a Node's place; nowhere: it is gone.
func (w *ways) node(name string, at place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.where == nil || w.where[name].is(at) {
		return
	}
	if w.where[name] = at; len(at.addresses) == 0 {
		delete(w.where, name)
	}
	w.tell(name)
}

// blocks tells of a NodeNetwork's blocks; none: it is gone.
func (w *ways) blocks(name string, cidrs []netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.what == nil || slices.Equal(w.what[name], cidrs) {
		return
	}
	if w.what[name] = cidrs; len(cidrs) == 0 {
		delete(w.what, name)
	}
	w.tell(name)
}

// nodes tells of all Nodes, and networks of all NodeNetworks.
func (w *ways) nodes(all map[string]place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.where = all
	w.tellAll()
}

func (w *ways) networks(all map[string][]netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.what = all
	w.tellAll()
}

// tell tells of one node, once all have been told.
func (w *ways) tell(name string) {
	switch {
	case w.where == nil || w.what == nil:
	case len(w.where[name].addresses) > 0 && len(w.what[name]) > 0:
		w.to.Put(w.joined(name))
	default:
		w.to.Drop(name)
	}
}

func (w *ways) tellAll() {
	if w.where == nil || w.what == nil {
		return
	}
	var all []peers.Node
	for name, cidrs := range w.what {
		if len(w.where[name].addresses) > 0 && len(cidrs) > 0 {
			all = append(all, w.joined(name))
		}
	}
	w.to.All(all)
}

func (w *ways) joined(name string) peers.Node {
	at, cidrs := w.where[name], w.what[name]
	return peers.Node{Name: name, CIDRs: cidrs, Addresses: at.addresses, Health: within(at.responder, cidrs), WireGuard: at.key, Boot: at.boot}
}

// blocksOf returns the blocks of a NodeNetwork, in order. Blocks that are none are left out: their node says so.
func blocksOf(n *network) (cidrs []netip.Prefix) {
	for _, b := range n.Spec.Blocks {
		if c, err := netip.ParsePrefix(b.CIDR); err == nil && c == c.Masked() {
			cidrs = append(cidrs, c)
		}
	}
	slices.SortFunc(cidrs, netip.Prefix.Compare)
	return slices.Compact(cidrs)
}

// networkStore hands on which blocks other nodes have.
type networkStore struct {
	*Watcher
	guard
}

func (s *networkStore) Add(o any) error { return s.Update(o) }

func (s *networkStore) Update(o any) error {
	n, ok := o.(*network)
	if !ok {
		return nil
	}
	s.note(n.ResourceVersion)
	if n.Name != s.Node {
		s.ways.blocks(strings.Clone(n.Name), blocksOf(n))
	}
	return nil
}

func (s *networkStore) Delete(o any) error {
	n, ok := o.(*network)
	if !ok {
		return nil
	}
	s.note(n.ResourceVersion)
	if n.Name != s.Node {
		s.ways.blocks(n.Name, nil)
	}
	return nil
}

func (s *networkStore) Replace(all []any, version string) error {
	err := s.fresh(version, time.Now())
	s.fails.noteOld(s.what, err)
	if err != nil {
		return err
	}
	s.newest = version
	what := map[string][]netip.Prefix{}
	for _, o := range all {
		if n, ok := o.(*network); ok && n.Name != s.Node {
			what[strings.Clone(n.Name)] = blocksOf(n)
		}
	}
	s.ways.networks(what)
	return nil
}

func (*networkStore) Resync() error { return nil }

// Transformer keeps of a NodeNetwork what counts here, while a reflector collects all of them.
func (*networkStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		n, ok := o.(*network)
		if !ok {
			return o, nil
		}
		less := &network{}
		less.Name, less.ResourceVersion, less.Spec = n.Name, n.ResourceVersion, n.Spec
		return less, nil
	}
}

// ownStore hands on this node's NodeNetwork.
type ownStore struct{ *Watcher }

func (s ownStore) Add(o any) error { return s.Update(o) }

func (s ownStore) Update(o any) error {
	if n, ok := o.(*network); ok && n.Name == s.Node {
		s.Leases.Network(&n.NodeNetwork)
	}
	return nil
}

func (s ownStore) Delete(o any) error {
	if n, ok := o.(*network); ok && n.Name == s.Node {
		s.Leases.Network(nil)
	}
	return nil
}

func (s ownStore) Replace(all []any, _ string) error {
	if len(all) == 0 {
		s.Leases.Network(nil)
	}
	for _, o := range all {
		_ = s.Update(o)
	}
	return nil
}

func (ownStore) Resync() error { return nil }

// poolStore hands on the pools.
type poolStore struct{ *Watcher }

func (s poolStore) Add(o any) error { return s.Update(o) }

func (s poolStore) Update(o any) error {
	if p, ok := o.(*ippool); ok {
		s.Leases.View().PutPool(&p.IPPool)
	}
	return nil
}

func (s poolStore) Delete(o any) error {
	if p, ok := o.(*ippool); ok {
		s.Leases.View().DropPool(p.Name)
	}
	return nil
}

func (s poolStore) Replace(all []any, _ string) error {
	var pools []*v1alpha1.IPPool
	for _, o := range all {
		if p, ok := o.(*ippool); ok {
			pools = append(pools, &p.IPPool)
		}
	}
	s.Leases.View().Pools(pools)
	return nil
}

func (poolStore) Resync() error { return nil }
