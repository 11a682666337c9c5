package share

import (
	"math"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-net/berth/api/v1alpha1"
	"github.com/berth-net/berth/internal/blocks"
)

// maxBlocks is how many blocks a NodeNetwork has at most (the CRD's maxItems).
const maxBlocks = 1024

// share gives members what they need, and withdraws what they do not.
func (p *pass) share() {
	for _, m := range p.members {
		if m.node == nil {
			continue
		}
		need := p.need(m)
		for _, f := range p.families {
			p.fit(m, f, need)
		}
		for _, s := range m.slots {
			s.gone = s.gone || s.withdrawn && s.asked && !s.held && !s.noted
		}
	}
}

// need returns how many addresses of each family a member needs of the pool.
func (p *pass) need(m *member) int64 {
	leaving := !m.network.DeletionTimestamp.IsZero() && len(m.network.Status.Held) == 0
	if leaving || p.deleting() || !p.selector.Matches(labels.Set(m.node.Labels)) {
		return 0
	}
	for _, r := range m.network.Status.Requests {
		if r.Pool == p.pool.Name {
			return int64(r.Addresses)
		}
	}
	return 0
}

// fit fits a member's blocks of a family to its need: it takes back what it has withdrawn before it gives new blocks, and
// withdraws the last block first.
func (p *pass) fit(m *member, f *family, need int64) {
	var usable []*slot // of the family, in order, in the pool's spec
	var have int64
	for _, s := range m.slots {
		if s.gone || s.refused || !s.known || s.place.family != f {
			continue
		}
		if s.place.isDrained() {
			s.withdrawn = true
			continue
		}
		usable = append(usable, s)
		if !s.withdrawn {
			have += f.usable
		}
	}
	coming := false
	for _, s := range m.gets {
		if s.place.family == f {
			have += f.usable
			coming = true
		}
	}
	for _, s := range usable {
		if have < need && s.withdrawn {
			s.withdrawn = false
			have += f.usable
		}
	}
	for have < need && len(f.spec) > 0 {
		if len(m.network.Spec.Blocks)+len(m.gets) >= maxBlocks {
			break
		}
		if len(p.notes) >= maxNotes {
			p.again = true
			break
		}
		cidr, ok := f.next()
		if !ok {
			if !p.claimed {
				p.waiting = append(p.waiting, m.network.Name)
			}
			break
		}
		p.noteFor(m, cidr)
		have += f.usable
		coming = true
	}
	for i := len(usable) - 1; i >= 0 && !coming; i-- {
		if s := usable[i]; !s.withdrawn && spare(have-f.usable, need, f) {
			s.withdrawn = true
			have -= f.usable
		}
	}
}

// spare reports whether a node that has so much left can do without more. It keeps a quarter of a block beyond its need, so
// that a need that rises and falls by a pod or two moves no block to and fro.
func spare(left, need int64, f *family) bool {
	return need == 0 || left >= need+f.usable/4
}

// Short returns the pools of which a node has fewer addresses, in a family, than it asks for. pools are all pools, by name.
func Short(n *v1alpha1.NodeNetwork, pools map[string]*v1alpha1.IPPool) (names []string) {
	for _, r := range n.Status.Requests {
		p := pools[r.Pool]
		if p == nil {
			continue
		}
		for i, of := range []*v1alpha1.Range{p.Spec.IPv4, p.Spec.IPv6} {
			if of == nil {
				continue
			}
			if has(n, r.Pool, widths[i]) < int64(r.Addresses) {
				names = append(names, r.Pool)
				break
			}
		}
	}
	return names
}

// has returns how many addresses of a width, in bits, a node's blocks of a pool have.
func has(n *v1alpha1.NodeNetwork, pool string, width int) (addresses int64) {
	for _, b := range n.Spec.Blocks {
		c, err := netip.ParsePrefix(b.CIDR)
		if err == nil && b.Pool == pool && !b.Withdrawn && c.Addr().BitLen() == width {
			addresses += min(blocks.Usable(c.Bits(), width), math.MaxInt32)
		}
	}
	return addresses
}
