package bridgeport

import (
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
	"github.com/berth-net/berth/internal/stamp"
)

// Seen is a port with the instance's mark that was seen on the node.
type Seen struct {
	Stamp stamp.Stamp
	Spec  *Spec        // without routes; its addresses are what the pod's own end says. Without Netns, if the pod was not found
	Said  []netip.Addr // the pod's addresses, as the port's alias says: no pod can change them. nil: it says none
	Going bool         // it is half-made, or cut off
}

// Survey looks for the instance's ports, for an agent that has lost its ledger. The pods' ends are looked for in the network namespaces that each
// goes through. What cannot be looked at is left out.
func (p *Ports) Survey(each func(self ns.Ref, f func(*ns.Netns))) ([]Seen, error) {
	links, err := rtnl.Steady(func() ([]rtnl.Link, error) { return p.list(false) })
	if err != nil {
		return nil, err
	}
	all := make([]Seen, len(links))
	for i, l := range links {
		all[i] = p.seen(l)
	}
	if len(links) == 0 {
		return nil, nil
	}
	each(p.At.Ref(), func(at *ns.Netns) {
		var here int
		if p.Conn.Do(rtnl.NetnsID(at.Fd(), &here)) != nil {
			return
		}
		for i, l := range links {
			if l.PeerNetns == here && here != rtnl.NoNetns {
				all[i].look(at, l)
			}
		}
	})
	return all, nil
}

// seen describes a port whose alias is one of the instance's, as the node has it.
func (p *Ports) seen(l rtnl.Link) Seen {
	of, _ := stamp.ParsePort(l.Alias)
	key, _ := of.Key()
	s := &Spec{Name: of.Link(), Alias: l.Alias, Ifname: key.Ifname, MTU: l.MTU, HostMAC: l.MAC}
	var port rtnl.PortOf
	if p.Conn.Do(rtnl.GetPort(l.Index, &port)) == nil && port.Master != 0 {
		s.Isolated, s.Hairpin = port.Isolated, port.Hairpin
		if names, err := p.Conn.Names(port.Master); err == nil {
			s.Bridge = names[0]
		}
	}
	macs, _ := p.Conn.PortMACs(l.Index)
	for _, m := range macs {
		if m.Sticky && m.MAC != l.MAC { // what guard has told the bridge: no pod can change it
			s.MAC = m.MAC
		}
	}
	seen := Seen{Stamp: of, Spec: s, Going: l.Group == s.groups().Coming() || l.Group == s.groups().Cut()}
	for _, text := range of.Addresses() {
		if a, err := netip.ParseAddr(text); err == nil {
			seen.Said = append(seen.Said, a)
		}
	}
	return seen
}

// look adds to what was seen of a port what the pod's end says. at is the namespace that has it.
func (s *Seen) look(at *ns.Netns, port rtnl.Link) {
	s.Spec.Netns = at.Ref()
	conn, err := rtnl.Open(at)
	if err != nil {
		return
	}
	defer conn.Close()
	var l rtnl.Link
	if conn.Do(rtnl.GetLinkAt(port.Peer, &l)) != nil {
		return
	}
	s.Spec.MTU, s.Spec.Addresses = l.MTU, inside.Addresses(conn, l.Index)
	if s.Spec.Ifname == "" {
		s.Spec.Ifname = l.Name
	}
	if s.Spec.MAC == "" {
		s.Spec.MAC = l.MAC
	}
}

// Owner returns whose the port is.
func (s Seen) Owner() hold.ID { return hold.ID(s.Stamp.ID) }
