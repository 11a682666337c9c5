package share

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/api/v1alpha1"
)

// note is a note in Pending.
type note struct {
	cidr netip.Prefix
	node string
	uid  types.UID
	done bool // the NodeNetwork has the block
}

// readNotes reads the pool's notes, and drops those that are done with: the pool was read before, and the NodeNetwork is read
// now. A note that is not in the cached NodeNetwork is completed later, by writeNetworks; nobody undoes it.
func (p *pass) readNotes() error {
	byUID := map[types.UID]*member{}
	for _, m := range p.members {
		byUID[m.network.UID] = m
	}
	for _, pending := range p.pool.Status.Pending {
		cidr, err := netip.ParsePrefix(pending.CIDR)
		if err != nil {
			p.wrong(reasonDamaged, "status.pending: %q is no CIDR", pending.CIDR)
			continue
		}
		n := note{cidr: cidr, node: pending.Node, uid: types.UID(pending.UID)}
		if m := byUID[n.uid]; m != nil && !hasInSpec(m.network, cidr) {
			p.notes = append(p.notes, n)
			continue
		}
		network, err := p.Network(p.ctx, n.node)
		if err != nil {
			return fmt.Errorf("reading the NodeNetwork %s: %w", n.node, err)
		}
		switch {
		case network == nil || network.UID != n.uid:
			p.void(n)
		case hasInSpec(network, cidr):
		default:
			p.notes = append(p.notes, n)
			p.again = true // the cache is old
		}
	}
	return nil
}

// void drops the note of a NodeNetwork that is gone. The node may hold the block all the same, if its Node is still there: then
// it says so to its next NodeNetwork.
func (p *pass) void(n note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.departed[n.uid] {
		p.returned.blocks[n.cidr] = true
	}
}

// writeNotes writes the notes into the pool's status.
func (p *pass) writeNotes() {
	p.pool.Status.Pending = nil
	for _, n := range p.notes {
		p.pool.Status.Pending = append(p.pool.Status.Pending, v1alpha1.PendingBlock{CIDR: n.cidr.String(), Node: n.node, UID: string(n.uid)})
	}
}

// noteFor notes a block for a member, which gets it.
func (p *pass) noteFor(m *member, cidr netip.Prefix) {
	p.notes = append(p.notes, note{cidr: cidr, node: m.network.Name, uid: m.network.UID})
	s := &slot{cidr: cidr, noted: true}
	s.place, s.known = p.families.find(cidr)
	m.gets = append(m.gets, s)
}

// notedFor returns for which NodeNetwork a block is noted.
func (p *pass) notedFor(cidr netip.Prefix) (types.UID, bool) {
	i := slices.IndexFunc(p.notes, func(n note) bool { return n.cidr == cidr })
	if i < 0 {
		return "", false
	}
	return p.notes[i].uid, true
}

func hasInSpec(n *v1alpha1.NodeNetwork, cidr netip.Prefix) bool {
	text := cidr.String()
	return slices.ContainsFunc(n.Spec.Blocks, func(b v1alpha1.Block) bool { return b.CIDR == text })
}
