package share

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/api/v1alpha1"
)

// member is a node with its NodeNetwork, and what becomes of that.
type member struct {
	network *v1alpha1.NodeNetwork // as it was read; never changed
	node    *corev1.Node          // as cached; nil: not there, or another Node of that name
	slots   []*slot               // the spec's blocks of the pool, in their order
	strays  []netip.Prefix        // blocks of the pool that are held, and not in the spec
	gets    []*slot               // blocks that are noted for the node, and not in the spec
}

// slot is a block of a member.
type slot struct {
	cidr      netip.Prefix
	place     place
	known     bool // the pool has such a block
	withdrawn bool
	asked     bool // the node has been asked for it: it was withdrawn before this pass
	held      bool
	noted     bool
	refused   bool // is another node's: it is not given back to this one
	gone      bool // leaves the spec
}

// enlist makes the members.
func (p *pass) enlist(networks []*v1alpha1.NodeNetwork, nodes []*corev1.Node) {
	byName := nodesByName(nodes)
	for _, n := range networks {
		m := &member{network: n}
		if node := byName[n.Name]; node != nil && node.UID == ownerOf(n) {
			m.node = node
		}
		p.members = append(p.members, m)
	}
	slices.SortFunc(p.members, func(a, b *member) int { return cmp.Compare(a.network.Name, b.network.Name) })
}

// place finds out which blocks of the pool each member has.
func (p *pass) place() {
	noted := map[netip.Prefix]types.UID{}
	for _, n := range p.notes {
		noted[n.cidr] = n.uid
	}
	byUID := map[types.UID]*member{}
	for _, m := range p.members {
		byUID[m.network.UID] = m
		in, out := p.blocksOf(m.network)
		for _, b := range in {
			s := &slot{cidr: b.cidr, withdrawn: b.Withdrawn, asked: b.Withdrawn, held: b.held, noted: noted[b.cidr] == m.network.UID}
			s.place, s.known = p.families.find(b.cidr)
			m.slots = append(m.slots, s)
		}
		m.strays = out
	}
	for _, n := range p.notes {
		m := byUID[n.uid]
		if m == nil || slices.ContainsFunc(m.slots, func(s *slot) bool { return s.cidr == n.cidr }) {
			continue
		}
		s := &slot{cidr: n.cidr, noted: true}
		if s.place, s.known = p.families.find(n.cidr); s.known {
			m.gets = append(m.gets, s)
		}
	}
}

// block is a block in a NodeNetwork.
type block struct {
	v1alpha1.Block
	cidr netip.Prefix
	held bool
}

// blocksOf returns a NodeNetwork's blocks of the pool: those of the spec, and those that are held alone.
func (p *pass) blocksOf(n *v1alpha1.NodeNetwork) (in []block, strays []netip.Prefix) {
	for _, b := range n.Spec.Blocks {
		if cidr, err := netip.ParsePrefix(b.CIDR); err == nil && b.Pool == p.pool.Name {
			in = append(in, block{Block: b, cidr: cidr})
		}
	}
	for _, b := range n.Status.Held {
		cidr, err := netip.ParsePrefix(b.CIDR)
		if err != nil || b.Pool != p.pool.Name {
			continue
		}
		if i := slices.IndexFunc(in, func(o block) bool { return o.cidr == cidr }); i >= 0 {
			in[i].held = true
		} else {
			strays = append(strays, cidr)
		}
	}
	return in, strays
}

// ownerOf returns the UID of the Node that a NodeNetwork belongs to; "": of none.
func ownerOf(n *v1alpha1.NodeNetwork) types.UID {
	for _, o := range n.OwnerReferences {
		if o.Kind == "Node" && o.Name == n.Name {
			return o.UID
		}
	}
	return ""
}

// spoken reports whether a node's agent has written a status.
func spoken(n *v1alpha1.NodeNetwork) bool {
	s := n.Status
	return len(s.Conditions) > 0 || len(s.Addresses) > 0 || len(s.Held) > 0 || len(s.Requests) > 0
}

// upToDate puts what this Sharer has written in the place of what the cache still shows.
func (s *Sharer) upToDate(cached []*v1alpha1.NodeNetwork) []*v1alpha1.NodeNetwork {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.written) == 0 {
		return cached
	}
	all := slices.Clone(cached)
	seen := map[types.UID]bool{}
	for i, n := range all {
		seen[n.UID] = true
		if w := s.written[n.UID]; w != nil {
			if newer(w.ResourceVersion, n.ResourceVersion) {
				all[i] = w
			} else {
				delete(s.written, n.UID)
			}
		}
	}
	for uid := range s.written {
		if !seen[uid] {
			delete(s.written, uid) // gone, or not yet there: then the cache shows it soon
		}
	}
	return all
}

// newer compares resourceVersions, which are numbers (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions).
// What it answers only saves work: a write by an old version is refused.
func newer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x > y
}
