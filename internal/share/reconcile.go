package share

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/blocks"
)

// holder is a NodeNetwork that has a block.
type holder struct {
	network *v1alpha1.NodeNetwork
	block   netip.Prefix
	place   place
	spec    bool
	held    bool
}

// reconcile makes the pool's record and what NodeNetworks have agree: it frees what nobody has, takes in what a node holds
// without a record, and refuses what two have. What the cache shows only tells whether to look; what is done follows from a live
// list that came after the pool's read.
func (p *pass) reconcile() error {
	look, everybody := p.suspects()
	if !look && !p.claimed {
		return nil
	}
	if everybody {
		nodes, err := p.Nodes(p.ctx)
		if err != nil {
			return fmt.Errorf("listing nodes: %w", err)
		}
		if err := p.list(); err != nil {
			return err
		}
		byName := map[string]*v1alpha1.NodeNetwork{}
		for _, n := range p.live {
			byName[n.Name] = n
		}
		for _, node := range nodes {
			n := byName[node.Name]
			if !p.Select.Matches(labels.Set(node.Labels)) {
				continue
			}
			everybody = everybody && n != nil && ownerOf(n) == node.UID && spoken(n)
		}
	} else if err := p.list(); err != nil {
		return err
	}
	all := p.holders(p.live)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].block == all[0].block {
			n++
		}
		p.settle(all[:n])
		all = all[n:]
	}
	p.free(everybody)
	return nil
}

func (p *pass) list() (err error) {
	if p.live, err = p.Networks(p.ctx); err != nil {
		return fmt.Errorf("listing NodeNetworks: %w", err)
	}
	return nil
}

// suspects reports whether something in the cache makes a live list worth while, and whether the agents of all nodes seem to
// have written a status.
func (p *pass) suspects() (look, everybody bool) {
	everybody = true
	had := map[*family][]int64{}
	for _, m := range p.members {
		everybody = everybody && spoken(m.network)
		for _, s := range m.slots {
			if !s.known {
				s.withdrawn = true
				p.wrong(reasonNoBlock, "the node %s has %s, which is no block of the pool", m.network.Name, s.cidr)
				continue
			}
			had[s.place.family] = append(had[s.place.family], s.place.number)
			look = look || !s.place.isGiven()
		}
		for _, cidr := range m.strays {
			if at, ok := p.families.find(cidr); ok {
				had[at.family] = append(had[at.family], at.number)
				uid, _ := p.notedFor(cidr)
				look = look || uid != m.network.UID || !at.isGiven()
			}
		}
	}
	for _, f := range p.families {
		ns := had[f]
		set := blocks.Of(ns)
		twice := set.Len() < int64(len(ns))
		lost := f.given.Minus(set).Minus(p.noted(f))
		look = look || twice || lost.Len() > 0 && everybody
		for b := range p.returned.blocks {
			if at, ok := p.families.find(b); ok && at.family == f && lost.Has(at.number) {
				look = true
			}
		}
	}
	return look, everybody
}

// holders returns who has which block of the pool, in the order of blocks.
func (p *pass) holders(networks []*v1alpha1.NodeNetwork) (all []holder) {
	for _, n := range networks {
		from := len(all)
		for i, list := range [][]v1alpha1.Block{n.Spec.Blocks, n.Status.Held} {
			for _, b := range list {
				cidr, err := netip.ParsePrefix(b.CIDR)
				if err != nil {
					continue
				}
				at, ok := p.families.find(cidr)
				if !ok {
					continue
				}
				j := slices.IndexFunc(all[from:], func(h holder) bool { return h.block == cidr })
				if j < 0 {
					all = append(all, holder{network: n, block: cidr, place: at})
					j = len(all) - 1 - from
				}
				all[from+j].spec = all[from+j].spec || i == 0
				all[from+j].held = all[from+j].held || i == 1
			}
		}
	}
	slices.SortFunc(all, func(a, b holder) int {
		return cmp.Or(a.block.Addr().Compare(b.block.Addr()), cmp.Compare(a.network.Name, b.network.Name))
	})
	return all
}

// numbers returns the numbers of the holders' blocks of a family.
func numbers(all []holder, f *family) blocks.Set {
	var ns []int64
	for _, h := range all {
		if h.place.family == f {
			ns = append(ns, h.place.number)
		}
	}
	return blocks.Of(ns)
}

// noted returns the numbers of the blocks of a family that are noted for a node.
func (p *pass) noted(f *family) blocks.Set {
	var ns []int64
	for _, n := range p.notes {
		if at, ok := p.families.find(n.cidr); ok && at.family == f {
			ns = append(ns, at.number)
		}
	}
	return blocks.Of(ns)
}

// settle decides whose a block is that these have, by a live list. A block that is noted is for whom it is noted.
func (p *pass) settle(who []holder) {
	uid, noted := p.notedFor(who[0].block)
	owner := slices.MinFunc(who, func(a, b holder) int {
		return cmp.Or(
			yesFirst(a.network.UID == uid, b.network.UID == uid),
			yesFirst(a.spec && a.held, b.spec && b.held), yesFirst(a.held, b.held), yesFirst(a.spec, b.spec),
			a.network.CreationTimestamp.Compare(b.network.CreationTimestamp.Time), cmp.Compare(a.network.Name, b.network.Name),
		)
	})
	for _, h := range who {
		if h.network != owner.network || noted && h.network.UID != uid {
			p.refuse(h, owner)
		}
	}
	if noted {
		return
	}
	p.mu.Lock()
	delete(p.returned.blocks, owner.block)
	p.mu.Unlock()
	owner.place.give() // if it was not given, as when the pool's status was lost
	m := p.memberOf(owner.network)
	if !owner.spec && m != nil && m.node != nil && len(p.notes) < maxNotes {
		p.noteFor(m, owner.block)
	}
}

func (p *pass) memberOf(n *v1alpha1.NodeNetwork) *member {
	i := slices.IndexFunc(p.members, func(m *member) bool { return m.network.UID == n.UID })
	if i < 0 {
		return nil
	}
	return p.members[i]
}

// refuse takes a block from one who should not have it: at once if it is not held there, and else as soon as no pod has an
// address of it.
func (p *pass) refuse(h, owner holder) {
	name := owner.network.Name
	if name == h.network.Name {
		name = "another node"
	}
	p.wrong(reasonClaimedTwice, "the node %s claims %s, which is %s's", h.network.Name, h.block, name)
	m := p.memberOf(h.network)
	if m == nil {
		return
	}
	for _, s := range m.slots {
		if s.cidr != h.block {
			continue
		}
		if !s.held && !s.noted {
			s.gone = true
		}
		if !s.withdrawn {
			s.withdrawn, s.refused = true, true
			p.Event(h.network, reasonClaimedTwice, fmt.Sprintf("%s is %s's: the node has to return it", h.block, name))
		}
	}
}

func yesFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// free frees blocks that nobody has: those that this Sharer itself has taken from a node, and all of them if everybody's agent
// has written a status. Before, a node whose NodeNetwork was lost might hold them.
func (p *pass) free(everybody bool) {
	all := p.holders(p.live)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.families {
		before := f.given.Len()
		lost := f.given.Minus(numbers(all, f)).Minus(p.noted(f))
		for b := range p.returned.blocks {
			at, ok := p.families.find(b)
			if ok && at.family != f {
				continue
			}
			if ok && lost.Has(at.number) {
				at.free()
			}
			if !ok || !at.isGiven() {
				delete(p.returned.blocks, b)
			}
		}
		if everybody {
			f.given = f.given.Minus(lost)
		}
		if f.given.Len() < before && slices.Contains(f.closed, true) {
			p.again = true // what the pool claims may go now, and what was said of it
		}
	}
}
