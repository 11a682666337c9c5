package bridge

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	kind "github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/mode"
)

// Survey makes an owner of every port with this agent's mark, for a ledger that is made anew. The alias of a port has the pod's addresses, and no
// pod can change it. Where it has none, what the pod's own end says counts, as far as nobody else has these addresses. Addresses of no pool are an IPAM plugin's:
// nobody else knows what it has given, so they do not count. others are the attachments that other modes have found.
func (m *Bridge) Survey(epoch string, now time.Time, others []mode.Found) ([]mode.Found, error) {
	seen, err := m.Ports.Survey(m.EachNetns)
	if err != nil {
		return nil, err
	}
	ids, taken := map[hold.ID]bool{}, map[netip.Addr]bool{}
	for _, o := range others {
		ids[o.Owner.ID] = true
		for _, a := range o.Addresses {
			taken[a] = true
		}
	}
	said := make([][]netip.Prefix, len(seen))
	for i, s := range seen {
		if len(s.Said) == 0 {
			said[i] = s.Spec.Addresses
		}
		for _, a := range s.Said {
			taken[a] = true
		}
	}
	believed := mode.Believe(said, taken, func(a netip.Addr) bool { return m.Pools.Segment(m.Pools.PoolOf(a)) != nil })
	var all []mode.Found
	for i, s := range seen {
		if ids[s.Owner()] {
			continue
		}
		ids[s.Owner()] = true
		addrs := slices.DeleteFunc(s.Said, func(a netip.Addr) bool { return m.Pools.PoolOf(a) == "" })
		for _, a := range believed[i] {
			addrs = append(addrs, a.Addr())
		}
		all = append(all, m.found(s, addrs, epoch, now))
	}
	return all, nil
}

// found returns the attachment that a port stands for. addrs are the pod's addresses.
func (m *Bridge) found(s kind.Seen, addrs []netip.Addr, epoch string, now time.Time) mode.Found {
	p := mode.Found{Addresses: addrs}
	r := attachment.Record{Netns: s.Spec.Netns, Mode: m.Name(), Created: now, Made: m.Boottime(), Epoch: epoch, Adopted: true}
	key, err := s.Stamp.Key()
	switch {
	case err != nil:
		p.Lost = append(p.Lost, "network, container, interface")
	case s.Stamp.Short():
		p.Lost = append(p.Lost, "the end of network/container/interface")
		fallthrough
	default:
		r.Key, r.Started = key, s.Stamp.Start
	}
	if s.Spec.Netns.Ino == 0 {
		p.Lost = append(p.Lost, "network namespace")
	}
	if s.Spec.Bridge == "" {
		p.Lost = append(p.Lost, "bridge")
	}
	var prefixes []netip.Prefix
	if len(addrs) > 0 {
		r.Pool = m.Pools.PoolOf(addrs[0])
	}
	if on := m.Pools.Segment(r.Pool); on != nil {
		prefixes, _ = mode.OnSegment(on, addrs)
		s.Spec.Routes = mode.SegmentDefaults(on, addrs)
	}
	switch {
	case len(addrs) == 0:
		p.Lost = append(p.Lost, "addresses", "pool")
	case prefixes == nil:
		p.Lost = append(p.Lost, "pool")
	}
	s.Spec.Addresses = prefixes
	p.Record = r
	p.Owner = mode.SegmentOwner(s.Owner(), r, s.Spec, addrs)
	if s.Going {
		p.Owner.Releasing = now
	}
	return p
}
