package share

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-net/berth/api/v1alpha1"
)

// pass is one look at one pool, and what follows.
type pass struct {
	*Sharer
	ctx context.Context

	members   []*member // read before the pool
	addresses []address
	services  []netip.Prefix

	pool     *v1alpha1.IPPool // a copy of the live one, changed as the pass goes
	others   []*v1alpha1.IPPool
	selector labels.Selector
	families families
	notes    []note
	returned *returned
	live     []*v1alpha1.NodeNetwork // list, once it was needed

	claimed  bool     // the pool claims a CIDR that it did not claim before
	waiting  []string // nodes that wait for a block that is not there
	troubles []trouble
	events   []trouble
	again    bool // there is more to do
}

// maxNotes bounds how many notes a pool has, so that its status stays small.
const maxNotes = 500

// Pool shares a pool out: it gives blocks to nodes that need more, takes back what nodes have returned, and says how the pool
// is. again: the pool has to be looked at once more, although nobody changes anything.
func (s *Sharer) Pool(ctx context.Context, name string) (again bool, err error) {
	s.pass.Lock()
	defer s.pass.Unlock()
	p := &pass{Sharer: s, ctx: ctx}
	if found, err := p.read(name); err != nil || !found {
		return false, err
	}
	before := p.pool.DeepCopy()
	if p.families, err = readFamilies(p.pool); err != nil {
		p.wrong(reasonDamaged, "%v: no node gets a block", err)
		p.judge()
		return false, p.save(before)
	}
	if err := p.decide(); err != nil {
		return false, err
	}
	if err := p.save(before); err != nil {
		return false, err
	}
	for _, e := range p.events {
		p.Event(p.pool, e.reason, e.message)
	}
	if err := p.writeNetworks(); err != nil {
		return false, err
	}
	if err := p.finish(); err != nil {
		return false, err
	}
	return p.again || p.claimed, nil
}

// read reads all that a pass stands on. The order is part of the protocol: NodeNetworks first, and then the pool.
func (p *pass) read(name string) (found bool, err error) {
	nodes, err := p.CachedNodes(p.ctx)
	if err != nil {
		return false, fmt.Errorf("reading nodes: %w", err)
	}
	networks, err := p.CachedNetworks(p.ctx)
	if err != nil {
		return false, fmt.Errorf("reading NodeNetworks: %w", err)
	}
	networks = p.upToDate(networks)
	if p.services, err = p.Services(p.ctx); err != nil {
		return false, fmt.Errorf("reading the services' CIDRs: %w", err)
	}
	pools, err := p.Pools(p.ctx)
	if err != nil {
		return false, fmt.Errorf("reading pools: %w", err)
	}
	for _, o := range pools {
		if o.Name == name {
			p.pool = o.DeepCopy()
		} else {
			p.others = append(p.others, o)
		}
	}
	if p.pool == nil {
		return false, nil
	}
	if p.selector, err = selectorOf(p.pool); err != nil {
		return false, err
	}
	p.mu.Lock()
	p.returned = p.returnedAt(p.pool)
	p.mu.Unlock()
	p.addresses = addressesOf(nodes)
	slices.SortFunc(p.addresses, func(a, b address) int { return cmp.Or(cmp.Compare(a.node, b.node), a.addr.Compare(b.addr)) })
	slices.SortFunc(p.others, func(a, b *v1alpha1.IPPool) int { return cmp.Compare(a.Name, b.Name) })
	p.enlist(networks, nodes)
	return true, nil
}

// selectorOf returns which nodes a pool is for.
func selectorOf(pool *v1alpha1.IPPool) (labels.Selector, error) {
	if pool.Spec.NodeSelector == nil {
		return labels.Everything(), nil
	}
	s, err := metav1.LabelSelectorAsSelector(pool.Spec.NodeSelector)
	if err != nil {
		return nil, fmt.Errorf("nodeSelector of the pool %s: %w", pool.Name, err)
	}
	return s, nil
}

func (p *pass) deleting() bool { return !p.pool.DeletionTimestamp.IsZero() }

// decide changes p.pool's status and what the members shall have, and writes nothing but the pool's finalizer.
func (p *pass) decide() error {
	if !p.deleting() && !slices.Contains(p.pool.Finalizers, v1alpha1.Finalizer) {
		p.pool.Finalizers = append(p.pool.Finalizers, v1alpha1.Finalizer)
		if err := p.write(p.UpdatePool); err != nil {
			return fmt.Errorf("writing the finalizer of the pool %s: %w", p.pool.Name, err)
		}
	}
	p.claims()
	if err := p.readNotes(); err != nil {
		return err
	}
	p.place()
	if err := p.reconcile(); err != nil {
		return err
	}
	p.share()
	nodes := 0
	for _, m := range p.members {
		if len(m.slots) > 0 || len(m.gets) > 0 {
			nodes++
		}
	}
	if p.deleting() && nodes > 0 {
		p.wrong(reasonDeleting, "%d nodes have blocks, which they return when their pods have gone", nodes)
	}
	p.families.write(&p.pool.Status)
	p.writeNotes()
	p.pool.Status.Blocks.Nodes = int32(nodes)
	p.judge()
	return nil
}

// save writes the pool's status if it has changed.
func (p *pass) save(before *v1alpha1.IPPool) error {
	if reflect.DeepEqual(before.Status, p.pool.Status) {
		return nil
	}
	if err := p.write(p.UpdatePoolStatus); err != nil {
		return fmt.Errorf("writing the status of the pool %s: %w", p.pool.Name, err)
	}
	return nil
}

// write writes the pool, and goes on knowing what has come back if nobody else has written it.
func (p *pass) write(how func(context.Context, *v1alpha1.IPPool) error) error {
	err := how(p.ctx, p.pool)
	if err == nil {
		p.mu.Lock()
		p.returned.version = p.pool.ResourceVersion
		p.mu.Unlock()
	}
	return err
}

// finish drops the notes that this pass has completed, and lets a pool go that nobody has anything of.
func (p *pass) finish() error {
	before := p.pool.DeepCopy()
	p.notes = slices.DeleteFunc(p.notes, func(n note) bool { return n.done })
	p.writeNotes()
	if err := p.save(before); err != nil {
		return err
	}
	st := p.pool.Status
	if p.deleting() && st.Given == (v1alpha1.GivenBlocks{}) && len(st.Pending) == 0 {
		p.pool.Finalizers = slices.DeleteFunc(p.pool.Finalizers, func(f string) bool { return f == v1alpha1.Finalizer })
		if err := p.write(p.UpdatePool); err != nil {
			return fmt.Errorf("letting the pool %s go: %w", p.pool.Name, err)
		}
	}
	return nil
}

// nodesByName indexes nodes.
func nodesByName(nodes []*corev1.Node) map[string]*corev1.Node {
	all := make(map[string]*corev1.Node, len(nodes))
	for _, n := range nodes {
		all[n.Name] = n
	}
	return all
}
