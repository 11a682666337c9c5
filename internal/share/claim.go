package share

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/api/v1alpha1"
)

// A pool has two steps to a CIDR, because two pools may want one at the same time, and only one pool's status is written at
// a time: it claims the CIDR in its status, and gives blocks of it only after a live list of all pools that came after, and
// that shows no other pool's claim. So of two pools that claim at once, at most one gives.

// older orders pools: of two that want the same addresses, the first has them.
func older(a, b *v1alpha1.IPPool) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// claims decides which CIDRs the pool claims and gives up, and which of them it gives blocks of.
func (p *pass) claims() {
	for i := range p.families {
		f := p.families[i]
		f.closed, f.drained = make([]bool, len(f.claimed)), make([]bool, len(f.claimed))
		for j, cidr := range f.claimed {
			f.drained[j] = p.deleting() || !slices.Contains(f.spec, cidr)
			by, reason := p.barred(cidr, true)
			if reason != "" {
				p.wrong(reason, "%s overlaps %s: no node gets more blocks of it", cidr, by)
			}
			f.closed[j] = f.drained[j] || reason != ""
		}
		p.giveUp(f)
		for j, cidr := range f.claimed {
			if first, last := f.space.Numbers(j); f.drained[j] && !p.deleting() && f.given.Between(first, last) {
				p.wrong(reasonShrunk, "%s is no longer in the spec: nodes return their blocks of it when their pods have gone", cidr)
			}
		}
		for _, cidr := range f.spec {
			if p.deleting() || slices.Contains(f.claimed, cidr) {
				continue
			}
			if by, reason := p.barred(cidr, false); reason != "" {
				p.wrong(reason, "%s overlaps %s: no node gets blocks of it", cidr, by)
				continue
			}
			if err := f.set(append(slices.Clone(f.claimed), cidr)); err != nil {
				p.wrong(reasonOverlaps, "%v", err)
				continue
			}
			p.claimed = true
		}
	}
}

// giveUp takes the last CIDRs out of what the pool claims: those that are not in its spec, or that an older pool claims as
// well, and of which nothing is given.
func (p *pass) giveUp(f *family) {
	for len(f.claimed) > 0 {
		i := len(f.claimed) - 1
		if first, last := f.space.Numbers(i); f.given.Between(first, last) {
			return
		}
		contested := slices.ContainsFunc(p.others, func(o *v1alpha1.IPPool) bool {
			_, yes := overlaps(f.claimed[i], claimedBy(o))
			return yes && older(o, p.pool)
		})
		if !f.drained[i] && !contested {
			return
		}
		if f.set(f.claimed[:i]) != nil {
			return
		}
		f.closed, f.drained = f.closed[:i], f.drained[:i]
	}
}

// barred returns why the pool may not give blocks of a CIDR, and whom it would take them from.
func (p *pass) barred(cidr netip.Prefix, claimed bool) (by, reason string) {
	for _, o := range p.others {
		theirs := claimedBy(o)
		if !claimed && older(o, p.pool) {
			theirs = append(theirs, specOf(o)...)
		}
		if other, yes := overlaps(cidr, theirs); yes {
			return fmt.Sprintf("%s of the pool %s", other, o.Name), reasonOverlaps
		}
	}
	if other, yes := overlaps(cidr, p.services); yes {
		return fmt.Sprintf("%s, which services have", other), reasonOverlapsServices
	}
	for _, a := range p.addresses {
		if cidr.Contains(a.addr) {
			return fmt.Sprintf("%s, an address of the node %s", a.addr, a.node), reasonOverlapsNodes
		}
	}
	return "", ""
}

// address is a node's.
type address struct {
	addr netip.Addr
	node string
}

func addressesOf(nodes []*corev1.Node) (all []address) {
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				all = append(all, address{addr, n.Name})
			}
		}
	}
	return all
}

// claimedBy returns the CIDRs that a pool claims.
func claimedBy(pool *v1alpha1.IPPool) []netip.Prefix {
	return readable(pool.Status.BlockCIDRs.IPv4, pool.Status.BlockCIDRs.IPv6)
}

// specOf returns the CIDRs that a pool wants.
func specOf(pool *v1alpha1.IPPool) (all []netip.Prefix) {
	for _, r := range []*v1alpha1.Range{pool.Spec.IPv4, pool.Spec.IPv6} {
		if r != nil {
			all = append(all, readable(r.CIDRs)...)
		}
	}
	return all
}

// readable returns those of some CIDRs that can be read.
func readable(lists ...[]string) (all []netip.Prefix) {
	for _, list := range lists {
		for _, text := range list {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p.Masked())
			}
		}
	}
	return all
}
