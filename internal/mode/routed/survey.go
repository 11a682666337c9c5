package routed

import (
	"cmp"
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
	given := nodeSays(links, routes, neighbours)
	wanted, indices := make([]link.WantedEnd, len(links)), make([]int, len(links))
	for i, l := range links {
		indices[i] = l.Index
		wanted[i] = link.WantedEnd{Link: l}
		for _, n := range neighbours {
			if n.Index == l.Index && slices.Contains(given[l.Name], n.Addr) {
				wanted[i].PodMAC = n.MAC
			}
		}
	}
	shaped, err := rtnl.Steady(m.Conn.Shaped)
	if err != nil {
		return nil, fmt.Errorf("looking for the limits of the pods' links: %w", err)
	}
	rates := map[int]rtnl.Rate{}
	for _, q := range shaped {
		rates[q.Index] = q.Shape
	}
	policed, err := m.Conn.Policed(indices...)
	if err != nil {
		return nil, fmt.Errorf("looking for the limits of the pods' links: %w", err)
	}
	ends := m.Ends(m.Netns, wanted)
	m.believe(given, links, ends)
	mapped, err := m.Mapped()
	if err != nil {
		return nil, err
	}
	var pods []mode.Found
	for _, l := range wanted {
		seen := mode.Sight{Name: l.Name, Alias: l.Alias, MTU: l.MTU, MAC: l.PodMAC, Addresses: once(given[l.Name])}
		end := ends[l.Name]
		// An older agent's link has its Egress in the pod alone, where the pod may have changed it.
		seen.Ingress, seen.Egress = rates[l.Index], cmp.Or(policed[l.Index], end.Egress)
		if end.MAC != "" {
			seen.MAC = end.MAC
		}
		p := m.found(l.Link, seen, end, epoch, now)
		if ports := mapped[p.Owner.ID]; ports != nil {
			withPorts(&p.Owner, ports)
		}
		pods = append(pods, p)
	}
	markAlike(pods)
	return pods, nil
}

// nodeSays returns the pods' addresses, by the names of their links, as the node has them.
// Pods cannot change any of this. A link's alias comes first: it stays when others take the
// routes away, or when the link goes down. Then come the routes, and at last the permanent
// neighbours, which stay when the routes are flushed. If several links have an address, the
// first of them gets it.
func nodeSays(links []rtnl.Link, routes []rtnl.Route, neighbours []rtnl.Neighbour) map[string][]netip.Addr {
	given, taken := map[string][]netip.Addr{}, map[netip.Addr]bool{}
	for _, says := range []func(rtnl.Link) []netip.Addr{
		func(l rtnl.Link) []netip.Addr { return stamped(l.Alias) },
		func(l rtnl.Link) []netip.Addr { return routed(routes, l.Index) },
		func(l rtnl.Link) (addrs []netip.Addr) {
			for _, n := range neighbours {
				if n.Index == l.Index && !n.Addr.IsLinkLocalUnicast() && !n.Addr.IsMulticast() {
					addrs = append(addrs, n.Addr)
				}
			}
			return addrs
		},
	} {
		for _, l := range links {
			for _, addr := range says(l) {
				if !taken[addr] {
					taken[addr] = true
					given[l.Name] = append(given[l.Name], addr)
				}
			}
		}
	}
	return given
}

// believe adds to given addresses that only the pods' own interfaces have. A pod can give its
// interface any address. So Berth believes a pod about a family only if the node knows no address
// of the pod in that family, and only if the pod's interface has exactly one address of the family
// that belongs to a pool and that the node does not give to another pod. If another such pod claims
// the same address, neither is believed. All other addresses are nobody's, and rest.
func (m *Routed) believe(given map[string][]netip.Addr, links []rtnl.Link, ends map[string]link.PodEnd) {
	taken, claims := map[netip.Addr]bool{}, map[netip.Addr]int{}
	for _, addrs := range given {
		for _, addr := range addrs {
			taken[addr] = true
		}
	}
	type word struct{ link, family string }
	said := map[word][]netip.Addr{}
	for _, l := range links {
		for _, addr := range ends[l.Name].Addresses {
			if !taken[addr] && !hasFamily(given[l.Name], addr) && m.Pools.PoolOf(addr) != "" {
				w := word{l.Name, family(addr)}
				said[w] = append(said[w], addr)
				claims[addr]++
			}
		}
	}
	for w, addrs := range said {
		switch {
		case len(addrs) > 1 || claims[addrs[0]] > 1:
			m.Warn("only the pod itself says which address it has, and it says several, or one that another pod claims: the agent believes none of them, and they rest",
				"link", w.link, "says", addrs)
		default:
			given[w.link] = append(given[w.link], addrs[0])
		}
	}
}

// hasFamily reports whether one of addrs is of the same family as the address `of`.
func hasFamily(addrs []netip.Addr, of netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == of.Is4() })
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// markAlike marks pods that have the same key, because the key lacks its end. Only the pods' links
// tell the pods apart, also when only one of the pods is left.
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

// found returns the attachment that a link stands for.
func (m *Routed) found(l rtnl.Link, seen mode.Sight, end link.PodEnd, epoch string, now time.Time) mode.Found {
	id, _ := stamp.LinkID(l.Name)
	p := mode.Found{Addresses: seen.Addresses}
	// Started stays 0 if the alias does not say when the ADD began: then every deletion comes after the ADD.
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
	for _, c := range m.Pools.CIDRs(p.Record.Pool) {
		if len(seen.Addresses) > 0 && !hasFamily(seen.Addresses, c.Addr()) {
			what := family(c.Addr()) + " address, if it had one"
			if !slices.Contains(p.Lost, what) {
				p.Lost = append(p.Lost, what)
			}
		}
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

// stamped returns the addresses in a link's alias.
func stamped(alias string) []netip.Addr {
	s, _ := stamp.Parse(alias)
	var addrs []netip.Addr
	for _, text := range s.Addresses() {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
