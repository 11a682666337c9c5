package macvlan

import (
	"net/netip"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	kind "github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/mode"
)

// Survey makes an owner of every macvlan with this agent's mark, for a ledger that is made anew: nobody else gets the macvlan's addresses
// then. others are the attachments that other modes have found: a pod can give its interface any mark and any address, and takes nothing of theirs.
func (m *Macvlan) Survey(epoch string, now time.Time, others []mode.Found) (all []mode.Found) {
	ids, taken := map[hold.ID]bool{}, map[netip.Addr]bool{}
	for _, o := range others {
		ids[o.Owner.ID] = true
		for _, a := range o.Addresses {
			taken[a] = true
		}
	}
	seen := m.Seen()
	said := make([][]netip.Prefix, len(seen))
	for i, s := range seen {
		said[i] = s.Spec.Addresses
	}
	believed := mode.Believe(said, taken, m.ofSegment)
	for i, s := range seen {
		if ids[s.Owner] {
			continue
		}
		ids[s.Owner] = true
		s.Spec.Addresses = believed[i]
		all = append(all, m.found(s, epoch, now))
	}
	return all
}

// ofSegment reports whether an address is of a pool that has a segment.
func (m *Macvlan) ofSegment(a netip.Addr) bool { return m.Pools.Segment(m.Pools.PoolOf(a)) != nil }

// found returns the attachment that a macvlan stands for.
func (m *Macvlan) found(s kind.Seen, epoch string, now time.Time) mode.Found {
	p := mode.Found{}
	r := attachment.Record{Netns: s.Spec.Netns, Mode: m.Name(), Created: now, Made: m.Boottime(), Epoch: epoch, Adopted: true}
	parts := strings.Split(s.Whose, "/")
	for i, to := range []*string{&r.Network, &r.ContainerID, &r.Ifname} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	switch {
	case s.Short:
		p.Lost = append(p.Lost, "the end of network/container/interface")
	case len(parts) != 3 || r.Ifname != s.Spec.Ifname:
		p.Lost = append(p.Lost, "network, container, interface")
		r.Key = attachment.Key{}
	}
	for _, a := range s.Spec.Addresses {
		p.Addresses = append(p.Addresses, a.Addr())
		r.Pool = m.Pools.PoolOf(a.Addr())
	}
	if len(p.Addresses) == 0 {
		p.Lost = append(p.Lost, "addresses", "pool")
	} else {
		s.Spec.Routes = mode.SegmentDefaults(m.Pools.Segment(r.Pool), p.Addresses)
	}
	p.Record = r
	p.Owner = mode.SegmentOwner(s.Owner, r, s.Spec, p.Addresses)
	if s.Going {
		p.Owner.Releasing = now
	}
	return p
}
