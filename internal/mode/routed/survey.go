package routed

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/stamp"
)

// Survey makes an owner of every link with this agent's stamp.
func (m *Routed) Survey(epoch string, now time.Time) ([]mode.Found, error) {
	links, err := m.OwnLinks()
	if err != nil {
		return nil, err
	}
	routes, err := rtnl.Steady(func() ([]rtnl.Route, error) { return m.Conn.Routes(rtnl.RouteFilter{}) })
	if err != nil {
		return nil, fmt.Errorf("looking for the pods' routes: %w", err)
	}
	neighbours, err := rtnl.Steady(m.Conn.Neighbours)
	if err != nil {
		return nil, fmt.Errorf("looking for the pods' link-layer addresses: %w", err)
	}
	slices.SortFunc(links, func(x, y rtnl.Link) int { return strings.Compare(x.Name, y.Name) })
	var wanted []link.WantedEnd
	had := map[netip.Addr]bool{}
	for _, l := range links { // what the node's routes say goes before what pods say
		w := link.WantedEnd{Link: l}
		for _, addr := range routed(routes, l.Index) {
			had[addr] = true
			for _, n := range neighbours {
				if n.Index == l.Index && n.Addr == addr {
					w.PodMAC = n.MAC
				}
			}
		}
		wanted = append(wanted, w)
	}
	ends := m.Ends(m.Netns, wanted)
	taken := map[netip.Addr]bool{}
	var pods []mode.Found
	for _, l := range wanted {
		seen := mode.Sight{Name: l.Name, Alias: l.Alias, MTU: l.MTU, MAC: l.PodMAC, Addresses: routed(routes, l.Index)}
		end := ends[l.Name]
		if end.MAC != "" {
			seen.MAC = end.MAC
		}
		if len(seen.Addresses) == 0 { // it is down
			seen.Addresses = slices.DeleteFunc(end.Addresses, func(x netip.Addr) bool { return had[x] || m.Pools.PoolOf(x) == "" })
		}
		seen.Addresses = slices.DeleteFunc(seen.Addresses, func(x netip.Addr) bool { return taken[x] })
		for _, addr := range seen.Addresses {
			taken[addr] = true
		}
		pods = append(pods, m.found(l.Link, seen, end, epoch, now))
	}
	markAlike(pods)
	return pods, nil
}

// markAlike marks pods with the same key, which lacks an end: their links alone tell
// which is which, also when only one of them is left.
func markAlike(pods []mode.Found) {
	count := map[attachment.Key]int{}
	for _, p := range pods {
		count[p.Record.Key]++
	}
	for i := range pods {
		if p := &pods[i]; count[p.Record.Key] > 1 {
			p.Record.Alike = true
			p.Owner.Meta = p.Record.Encode()
		}
	}
}

// found is the attachment that a link stands for.
func (m *Routed) found(l rtnl.Link, seen mode.Sight, end link.PodEnd, epoch string, now time.Time) mode.Found {
	id, _ := stamp.LinkID(l.Name)
	p := mode.Found{Addresses: seen.Addresses}
	// Started is 0 where the alias does not say it: every deletion comes after it.
	p.Record = attachment.Record{Netns: end.Netns, Mode: netconf.ModeRouted, Created: now, Made: m.Boottime(), Epoch: epoch, Adopted: true}
	s, stamped := stamp.Parse(l.Alias)
	key, err := s.Key()
	switch {
	case !stamped || err != nil || s.Instance != m.Instance || s.ID != id:
		p.Lost = append(p.Lost, "network, container, interface")
	case s.Short():
		p.Lost = append(p.Lost, "the end of network/container/interface")
		fallthrough
	default:
		p.Record.Key, p.Record.Started = key, s.Start
	}
	if end.Netns.Ino == 0 {
		p.Lost = append(p.Lost, "network namespace")
	}
	if len(seen.Addresses) == 0 {
		p.Lost = append(p.Lost, "addresses")
	} else if p.Record.Pool = m.Pools.PoolOf(seen.Addresses[0]); p.Record.Pool == "" {
		p.Lost = append(p.Lost, "pool")
	}
	p.Owner = owner(id, p.Record, adopted(id, p.Record, &seen), seen.Addresses, seen.Addresses)
	if l.Group == m.Groups.Coming() || m.Groups.IsDying(l.Group) {
		p.Owner.Releasing = now
	}
	return p
}

func routed(routes []rtnl.Route, index int) []netip.Addr {
	return hosts(slices.DeleteFunc(slices.Clone(routes), func(r rtnl.Route) bool { return r.Index != index }))
}
