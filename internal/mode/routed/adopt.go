package routed

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/stamp"
)

// Sight looks at the link that a deletion of a key names. nil means that there is no such
// link, or that Berth leaves the link alone, because the link is another attachment's or belongs to
// another agent that lives. Sight does see a link of an instance that nobody serves: it may be a link
// of this node's former agent.
func (m *Routed) Sight(name string, k attachment.Key, addrs []netip.Addr) (*mode.Sight, error) {
	l, err := m.Conn.Link(name)
	if errors.Is(err, kernel.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking at the link of %s: %w", k, err)
	}
	if err := stamp.Check(name, l.Alias, k); err != nil {
		m.Warn("a deletion names a link that does not belong to its attachment; the agent leaves the link alone", "key", k, "err", err)
		return nil, nil
	}
	if s, _ := stamp.Parse(l.Alias); s.Instance != m.Instance && m.Others(s.Instance) {
		m.Warn("a deletion names a link of another agent; this agent leaves the link alone", "key", k, "link", name, "instance", s.Instance)
		return nil, nil
	}
	routes, err := m.Conn.Routes(rtnl.RouteFilter{Index: l.Index})
	if err != nil {
		return nil, fmt.Errorf("looking for the addresses of %s: %w", k, err)
	}
	return &mode.Sight{Name: name, Alias: l.Alias, MTU: l.MTU, Addresses: once(slices.Concat(stamped(l.Alias), hosts(routes), addrs))}, nil
}

// Adopt returns the owner of an attachment that no record tells of. The owner holds the link
// as it was seen, or no link if seen is nil. names are the addresses that the owner has. The owner
// holds all host ports that the agent's table has in the owner's name, but it has no names for these
// ports: the agent is about to release it. Adopt does not look at the table, because a table that
// hangs must not keep the pod from being cut off.
func (m *Routed) Adopt(id hold.ID, r attachment.Record, seen *mode.Sight, names []netip.Addr) hold.Owner {
	o := owner(id, r, adopted(id, r, seen), names, names)
	o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &hostports.Spec{Link: stamp.Link(m.Instance, id)}})
	return o
}

// adopted returns the link of an attachment that no record tells of, as far as s shows it.
// That is enough to cut the link off and to delete it, and also to keep it if the pod's
// addresses are known.
func adopted(id hold.ID, r attachment.Record, s *mode.Sight) *link.Spec {
	if s == nil {
		return nil
	}
	mac, hostMAC := link.MACs(id)
	if s.MAC != "" {
		mac = s.MAC // an ADD may ask for a MAC of its own
	}
	return &link.Spec{
		Name:      s.Name,
		Alias:     s.Alias,
		Netns:     r.Netns,
		Ifname:    r.Ifname,
		MTU:       s.MTU,
		MAC:       mac,
		HostMAC:   hostMAC,
		Addresses: s.Addresses,
		Ingress:   s.Ingress,
		Egress:    s.Egress,
	}
}

// hosts returns the single addresses that routes lead to.
func hosts(routes []rtnl.Route) []netip.Addr {
	var addrs []netip.Addr
	for _, r := range routes {
		if r.Dst.IsSingleIP() {
			addrs = append(addrs, r.Dst.Addr())
		}
	}
	return addrs
}

// once returns addresses sorted, and each once.
func once(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
