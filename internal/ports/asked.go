package ports

import (
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/hostports"
)

// What others ask of the view: which ports of the node are pods', and where these lead.

// Has reports whether an attachment that stands has a port of the node, at the address in `at` or at
// all addresses.
func (p *Ports) Has(protocol string, at netip.AddrPort) bool { return len(p.holders(protocol, at)) > 0 }

// Leads reports whether a port of the node leads to a pod's port, as the ledger has it.
func (p *Ports) Leads(protocol string, at, to netip.AddrPort) bool {
	return slices.ContainsFunc(p.holders(protocol, at), func(id hold.ID) bool {
		o, _ := p.Ledger.Owner(id)
		return slices.ContainsFunc(mappings(o), func(m nft.Mapping) bool { return m.Leads(protocol, at, to) })
	})
}

// holders returns the owners of a port of the node, at the address in `at` and at all addresses.
func (p *Ports) holders(protocol string, at netip.AddrPort) (ids []hold.ID) {
	any := netip.IPv4Unspecified()
	if at.Addr().Is6() {
		any = netip.IPv6Unspecified()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	held := p.has[port{protocol, at.Port(), at.Addr().Is6()}]
	for _, a := range []netip.Addr{at.Addr(), any} {
		if held[a] != "" {
			ids = append(ids, held[a])
		}
	}
	return ids
}

// mappings returns the host ports that an owner holds.
func mappings(o hold.Owner) []nft.Mapping {
	h, _ := o.Find(hostports.KindName)
	s, _ := h.Spec.(*hostports.Spec)
	if s == nil {
		return nil
	}
	return s.Mappings
}

// Kept returns those of an owner's host ports in the agent's table that the ledger has as well. If the
// owner is being released, Kept returns all its ports in the table: they stay until the release removes
// them. Before the ledger is open, Kept returns none.
func (p *Ports) Kept(id hold.ID, there []nft.Mapping) []nft.Mapping {
	if p.Ledger == nil {
		return nil
	}
	o, known := p.Ledger.Owner(id)
	if !known {
		return nil
	}
	if !o.Wanted() {
		return there
	}
	others := without(slices.Clone(there), mappings(o))
	return without(slices.Clone(there), others)
}

// Datagrams returns the host ports of standing attachments that are no ports of TCP, with the pods' ports to
// which these lead.
func (p *Ports) Datagrams() (ms []nft.Mapping) {
	for _, o := range p.Ledger.Owners() {
		if o.Wanted() {
			ms = append(ms, slices.DeleteFunc(slices.Clone(mappings(o)), func(m nft.Mapping) bool { return m.Protocol == "tcp" })...)
		}
	}
	return ms
}
