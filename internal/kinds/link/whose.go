package link

import (
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Whose a link is its alias says. Where another program has replaced that, the link has
// nobody's stamp, and what else ADD gave it says whose it is: its name, its second name,
// its MAC, its group, the index at which this agent has seen it, the routes to its pod.
// Two of these are enough; any program can change one of them, or give one to its own
// link. Name and group are not: programs exchange names, and the group is that of all
// the instance's links.
type signs struct {
	own   int // second name, MAC, index, routes
	loose int // name, group
}

func (n signs) enough() bool { return n.own > 0 && n.own+n.loose > 1 }

// verdict is what is known of a link that something leads to.
type verdict int

const (
	another verdict = iota // it is somebody else's
	unsure                 // it may be the owner's
	own
)

// owns reports whether a link is a spec's, whatever it is called.
func (l *Links) owns(s *Spec, link rtnl.Link) bool {
	return s.stamped(link) || stampless(link) && l.proved(s, link)
}

// stamped reports whether a link has a spec's alias.
func (s *Spec) stamped(link rtnl.Link) bool {
	of, ok := stamp.Parse(link.Alias)
	return ok && of.Link() == s.Name || link.Alias != "" && link.Alias == s.Alias
}

// stampless reports whether a link's alias is not one that Berth gives.
func stampless(link rtnl.Link) bool {
	_, ok := stamp.Parse(link.Alias)
	return !ok
}

// judge says whose a link is that something leads to. One that has nobody's stamp, and
// of which too little says whose it is, is somebody else's only if it cannot be the
// pod's: it is no veth, its other end is elsewhere, or this agent has seen the owner's at
// another index, which no link changes on the node.
func (l *Links) judge(s *Spec, link rtnl.Link) verdict {
	switch {
	case l.owns(s, link):
		return own
	case !stampless(link) || !link.Veth || link.Given != "" && link.Given != s.Name:
		return another
	case l.wasElsewhere(s, link) || l.endsElsewhere(s, link):
		return another
	}
	return unsure
}

// proved reports whether enough says that a link without a stamp is a spec's.
func (l *Links) proved(s *Spec, link rtnl.Link) bool {
	if !link.Veth || link.Given != "" && link.Given != s.Name {
		return false
	}
	n := l.signs(s.Name, link)
	if !n.enough() && n.own+n.loose > 0 && slices.Contains(l.routed(s), link.Index) {
		n.own++
	}
	return n.enough()
}

// signs counts what says that a link is the one that ADD gave a name, but for routes.
func (l *Links) signs(name string, link rtnl.Link) signs {
	n := signsOf(name, l.groups, link)
	if seen, known := l.memory.index(name); known && seen == link.Index {
		n.own++
	}
	return n
}

// signsOf is signs, by what can be seen of the link alone.
func signsOf(name string, groups stamp.Groups, link rtnl.Link) signs {
	return signs{
		own:   count(link.Given == name, link.MAC == hostMAC(name)),
		loose: count(link.Name == name, groups.Has(link.Group)),
	}
}

func count(all ...bool) (n int) {
	for _, yes := range all {
		if yes {
			n++
		}
	}
	return n
}

// hostMAC is the MAC of the host's end that ADD gave a name; "" if it is no such name.
func hostMAC(name string) string {
	id, ok := stamp.LinkID(name)
	if !ok {
		return ""
	}
	_, mac := MACs(id)
	return mac
}

// wasElsewhere reports whether this agent knows a spec's link at another index, be it
// deleted by now.
func (l *Links) wasElsewhere(s *Spec, link rtnl.Link) bool {
	at := l.memory.last(s.Name)
	return at != 0 && at != link.Index
}

// endsElsewhere reports whether a link's other end is not in the pod, for all that the
// kernel says. False is also that the pod cannot be looked at.
func (l *Links) endsElsewhere(s *Spec, link rtnl.Link) bool {
	if s.Ifname == "" {
		return false // of a link that was found, not planned
	}
	pod, err := s.Netns.Open()
	if err != nil {
		return false
	}
	defer pod.Close()
	var id int
	return l.conn.Do(rtnl.NetnsID(pod.Fd(), &id)) == nil && id != link.PeerNetns
}

// nameOf returns the name that ADD gave a link of the instance, whatever somebody has
// made of it since; false if it is none of the instance's.
func (l *Links) nameOf(link rtnl.Link) (string, bool) {
	if name, ok := NameOf(l.prefix, l.groups, link); ok {
		return name, true
	}
	if !stampless(link) || !link.Veth {
		return "", false
	}
	name, known := link.Given, link.Given != ""
	if !known && l.groups.Has(link.Group) {
		name, known = l.memory.at(link.Index)
	}
	return name, known && l.signs(name, link).enough() && ofInstance(l.prefix, name)
}

// NameOf returns the name that ADD gave a link of an instance, by what can be seen of
// the link alone: its alias or, of one that has nobody's stamp, its second name or its
// name, if enough else says the same.
func NameOf(instance string, groups stamp.Groups, link rtnl.Link) (string, bool) {
	if !stampless(link) {
		return stamp.Own(instance, link.Name, link.Alias)
	}
	name := link.Given
	if name == "" {
		name = link.Name
	}
	return name, link.Veth && ofInstance(instance, name) && signsOf(name, groups, link).enough()
}

// ofInstance reports whether a name is that of a link of an instance.
func ofInstance(instance, name string) bool {
	_, ok := stamp.Own(instance, name, "")
	return ok
}

// errUnsure says why a link that may be a spec's is left alone.
func errUnsure(s *Spec, link rtnl.Link) error {
	return fmt.Errorf("link %s (%d) may be %s: its alias %q is nobody's, and too little else says whose it is", link.Name, link.Index, s.Name, link.Alias)
}
