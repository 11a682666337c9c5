package macvlan

import (
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
	"github.com/berth-net/berth/internal/stamp"
)

// Seen is a macvlan with the instance's mark that was seen in a pod.
type Seen struct {
	Owner hold.ID
	Spec  *Spec  // without routes
	Whose string // what Alias was given, perhaps without its end
	Short bool   // the alias has no room for more
	Going bool   // it is half-made, or cut off
}

// Survey looks for the instance's macvlans in the network namespaces that each goes through, for an agent that has lost its ledger. A pod that
// may change its interfaces may have changed all that Survey says of it. What cannot be looked at is left out.
func (m *Macvlans) Survey(each func(self ns.Ref, f func(*ns.Netns))) (all []Seen) {
	each(m.At.Ref(), func(at *ns.Netns) {
		conn, err := rtnl.Open(at)
		if err != nil {
			return
		}
		defer conn.Close()
		var links []rtnl.Macvlan
		looked := 0
		_ = conn.EachMacvlan(func(l rtnl.Macvlan) error {
			if mark, ok := parse(l.Alias); ok && mark.instance == m.Instance && l.Mode != 0 {
				links = append(links, l)
			}
			if looked++; looked >= inside.Most {
				return rtnl.ErrStop
			}
			return nil
		})
		for _, l := range links {
			all = append(all, m.seen(conn, at.Ref(), l))
		}
	})
	return all
}

// seen describes a macvlan in a pod whose alias is one of the instance's.
func (m *Macvlans) seen(conn *rtnl.Conn, pod ns.Ref, l rtnl.Macvlan) Seen {
	mark, _ := parse(l.Alias)
	s := &Spec{Alias: l.Alias, Netns: pod, Ifname: mark.ifname, Mode: l.Mode.String(), MTU: l.MTU, MAC: l.MAC}
	if l.Mode == rtnl.MacvlanPassthru {
		s.MAC = ""
	}
	if names, err := m.Conn.Names(l.Peer); err == nil {
		s.Parent = names[0]
	}
	s.Addresses = inside.Addresses(conn, l.Index)
	g := s.groups()
	return Seen{
		Owner: mark.owner, Spec: s, Whose: strings.SplitN(l.Alias, " ", 5)[4], Short: len(l.Alias) == stamp.AliasLen,
		Going: l.Group == g.Coming() || g.IsDying(l.Group),
	}
}
