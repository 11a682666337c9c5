package share

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/berth-net/berth/api/v1alpha1"
)

// writeNetworks writes to the members what this pass has decided. Each was read before the pool, and is written by that
// version: see the package's comment.
func (p *pass) writeNetworks() error {
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	free := make(chan struct{}, p.Writers)
	for _, m := range p.members {
		spec, changed := p.specFor(m)
		if !changed {
			continue
		}
		free <- struct{}{}
		wait.Go(func() {
			defer func() { <-free }()
			network := m.network.DeepCopy()
			network.Spec.Blocks = spec
			err := p.UpdateNetwork(p.ctx, network)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, fmt.Errorf("writing the NodeNetwork %s: %w", network.Name, err))
				return
			}
			p.wrote(m, network)
		})
	}
	wait.Wait()
	return errors.Join(failed...)
}

// specFor returns the blocks that a member's spec shall have.
func (p *pass) specFor(m *member) (spec []v1alpha1.Block, changed bool) {
	if m.node == nil {
		return nil, false
	}
	byCIDR := map[netip.Prefix]*slot{}
	for _, s := range m.slots {
		byCIDR[s.cidr] = s
	}
	for _, b := range m.network.Spec.Blocks {
		cidr, _ := netip.ParsePrefix(b.CIDR)
		if s := byCIDR[cidr]; s != nil && b.Pool == p.pool.Name {
			if s.gone {
				changed = true
				continue
			}
			changed = changed || b.Withdrawn != s.withdrawn
			b.Withdrawn = s.withdrawn
		}
		spec = append(spec, b)
	}
	for _, s := range m.gets {
		spec = append(spec, v1alpha1.Block{Pool: p.pool.Name, CIDR: s.cidr.String()})
		changed = true
	}
	return spec, changed
}

// wrote notes what the API server has taken: the notes of these blocks are done, and blocks that left the spec have come back.
func (p *pass) wrote(m *member, network *v1alpha1.NodeNetwork) {
	p.mu.Lock()
	p.written[network.UID] = network
	for _, s := range m.slots {
		if s.gone {
			p.returned.blocks[s.cidr] = true
			p.again = true // to free it
		}
	}
	p.mu.Unlock()
	for i := range p.notes {
		if n := &p.notes[i]; n.uid == network.UID && hasInSpec(network, n.cidr) {
			n.done = true
		}
	}
}
