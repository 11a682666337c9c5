package link

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// A link's alias says whose it is. If another program has replaced the alias, the other things that ADD
// gave the link show whose the link is: its name, its second name, its MAC, its group, the index at
// which this agent has seen it, and the routes to its pod. Two of these are enough proof. One is not
// enough, because any program can change one of these things or give it to a link of its own. Name and
// group together are not enough either: programs exchange names, and all links of the instance have the
// same group.

// signs counts the things that show whose a link is.
type signs struct {
	own   int // second name, MAC, index, routes
	loose int // name, group
}

func (n signs) enough() bool { return n.own > 0 && n.own+n.loose > 1 }

// verdict says whose a link is.
type verdict int

const (
	another verdict = iota // the link is somebody else's
	unsure                 // the link may be the owner's
	own                    // the link is the owner's
)

// owns reports whether a link is the link of a spec, whatever the link's name is.
func (l *Links) owns(s *Spec, link rtnl.Link) bool {
	return s.stamped(link) || stampless(link) && l.proved(s, link)
}

// stamped reports whether a link has a spec's alias.
func (s *Spec) stamped(link rtnl.Link) bool {
	of, ok := stamp.Parse(link.Alias)
	return ok && of.Link() == s.Name || link.Alias != "" && link.Alias == s.Alias
}

// stampless reports whether a link's alias is no alias that Berth gives.
func stampless(link rtnl.Link) bool {
	_, ok := stamp.Parse(link.Alias)
	return !ok
}

// judge says whether a link is the link of a spec. The verdict is unsure if the link's alias is not one
// of Berth's, and if too little else shows whose link it is. Without an alias of Berth's, the verdict
// is another only if the link cannot be the pod's: because it is no veth, because its second name is
// another link's, because this agent has seen the owner's link at another index (a link keeps its index
// as long as it is on the node), or because it has neither the owner's second name nor the owner's MAC,
// no route of Berth's to the pod leads to it, and its other end is not in the pod. If the link has that
// second name or MAC, or such a route, the place of its other end proves nothing: a pod can move its
// end into a network namespace that the pod has made.
func (l *Links) judge(s *Spec, link rtnl.Link) verdict {
	switch {
	case l.owns(s, link):
		return own
	case !stampless(link) || !link.Veth || link.Given != "" && link.Given != s.Name:
		return another
	case l.wasElsewhere(s, link):
		return another
	case signsOf(s.Name, l.groups, link).own == 0 && l.endsElsewhere(s, link) && !slices.Contains(l.routed(s), link.Index):
		return another
	}
	return unsure
}

// proved reports whether enough shows that a link without an alias of Berth's is the link of a spec.
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

// signs counts what shows that a link is the link to which ADD gave a name. It does not count routes.
func (l *Links) signs(name string, link rtnl.Link) signs {
	n := signsOf(name, l.groups, link)
	if seen, known := l.memory.index(name); known && seen == link.Index {
		n.own++
	}
	return n
}

// signsOf is signs without the agent's memory: it counts what the link itself shows.
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

// hostMAC returns the MAC of the host's end to which ADD gave a name; "" if ADD gives no
// such name.
func hostMAC(name string) string {
	id, ok := stamp.LinkID(name)
	if !ok {
		return ""
	}
	_, mac := MACs(id)
	return mac
}

// wasElsewhere reports whether this agent has last seen the spec's link at an index that differs
// from link's, even if the spec's link is deleted by now.
func (l *Links) wasElsewhere(s *Spec, link rtnl.Link) bool {
	at := l.memory.last(s.Name)
	return at != 0 && at != link.Index
}

// endsElsewhere reports whether the kernel says that a link's other end is not in the pod.
// It also answers false if it cannot open the pod's namespace.
func (l *Links) endsElsewhere(s *Spec, link rtnl.Link) bool {
	if s.Ifname == "" {
		return false // find made the spec, so the spec does not know the pod
	}
	pod, err := s.Netns.Open()
	if err != nil {
		return false
	}
	defer pod.Close()
	var id int
	return l.conn.Do(rtnl.NetnsID(pod.Fd(), &id)) == nil && id != link.PeerNetns
}

// nameOf returns the name that ADD gave a link, even if others have changed the link since;
// false if the link is not the instance's.
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

// NameOf returns the name that ADD gave a link of an instance, as the link itself shows it:
// by its alias or, if the alias is not one of Berth's, by its second name or its name, provided that
// enough else of the link fits. It returns false if the link is not the instance's.
func NameOf(instance string, groups stamp.Groups, link rtnl.Link) (string, bool) {
	if !stampless(link) {
		return stamp.Own(instance, link.Name, link.Alias)
	}
	name := cmp.Or(link.Given, link.Name)
	return name, link.Veth && ofInstance(instance, name) && signsOf(name, groups, link).enough()
}

// ofInstance reports whether a name is the name of an instance's link.
func ofInstance(instance, name string) bool {
	_, ok := stamp.Own(instance, name, "")
	return ok
}

// errUnsure says why Berth leaves a link alone that may be the link of a spec.
func errUnsure(s *Spec, link rtnl.Link) error {
	return fmt.Errorf("link %s (index %d) may be Berth's link %s, but its alias %q is not Berth's, and too little else shows whose link it is: Berth leaves it alone", link.Name, link.Index, s.Name, link.Alias)
}
