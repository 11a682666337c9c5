package link

import (
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// locate finds the host's end of a link, whatever it is called by now. That no
// link has the name is no proof that the link is gone: anybody may have renamed
// it, and it carries its pod's traffic all the same. kernel.ErrNotFound is that
// it is nowhere. The usual case, by name, is one look-up.
func (l *Links) locate(s *Spec) (rtnl.Link, error) {
	var link rtnl.Link
	err := l.conn.Do(rtnl.GetLink(s.Name, &link))
	if err == nil && s.is(link) {
		l.memory.see(s.Name, link.Index)
		return link, nil
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		return rtnl.Link{}, err
	}
	return l.elsewhere(s)
}

// elsewhere finds a link that is not called as it should be, by whatever leads
// to it: each way in constant time. What is found has the owner's alias, or it is
// somebody else's.
//
//  1. Its second name, which ADD gave it and who renames it leaves it.
//  2. Its index, if this agent has seen the link.
//  3. The host's routes to the pod's addresses.
//  4. The pod's interface: it names the other end's index.
func (l *Links) elsewhere(s *Spec) (rtnl.Link, error) {
	var link rtnl.Link
	err := l.conn.Do(rtnl.GetAltLink(stamp.AltName(s.Name), &link))
	if err == nil && s.owns(link) {
		l.memory.see(s.Name, link.Index)
		return link, nil
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, kernel.ErrInvalid) { // a kernel without second names
		return rtnl.Link{}, err
	}
	for _, way := range []func(*Spec) []int{l.remembered, l.routed, podsPeer} {
		for _, index := range way(s) {
			err := l.conn.Do(rtnl.GetLinkAt(index, &link))
			if err == nil && s.owns(link) {
				l.memory.see(s.Name, index)
				return link, nil
			}
			if err != nil && !errors.Is(err, kernel.ErrNotFound) {
				return rtnl.Link{}, err
			}
		}
	}
	return rtnl.Link{}, kernel.As(kernel.ErrNotFound, fmt.Errorf("no link is %s, by whatever name", s.Name))
}

// remembered is the index that a link was last seen at.
func (l *Links) remembered(s *Spec) []int {
	if index, ok := l.memory.index(s.Name); ok {
		return []int{index}
	}
	return nil
}

// routed are the links that the host's routes to a pod's addresses lead to.
func (l *Links) routed(s *Spec) []int {
	routes := make([]rtnl.Route, len(s.Addresses))
	var rs []rtnl.Request
	for i, a := range s.Addresses {
		rs = append(rs, rtnl.MatchRoute(a, &routes[i]))
	}
	l.conn.Each(rs...) // no route is no link
	var indices []int
	for i, a := range s.Addresses {
		if routes[i].Index != 0 && routes[i].Dst == host(a) {
			indices = append(indices, routes[i].Index)
		}
	}
	return indices
}

// podsPeer is the other end of the pod's interface. A pod can hide that, and
// point at any index: whose the link there is its alias says.
func podsPeer(s *Spec) []int {
	if s.Ifname == "" {
		return nil
	}
	pod, err := s.Netns.Open()
	if err != nil {
		return nil
	}
	defer pod.Close()
	var inside *rtnl.Conn
	if err := pod.Do(func() (err error) { inside, err = rtnl.Here(); return err }); err != nil {
		return nil
	}
	defer inside.Close()
	var end rtnl.Link
	if inside.Do(rtnl.GetLink(s.Ifname, &end)) != nil || end.Peer == 0 {
		return nil
	}
	return []int{end.Peer}
}

// regain gives the host's end its name back, if somebody has renamed it.
func (l *Links) regain(s *Spec) bool {
	link, err := l.elsewhere(s)
	return err == nil && l.rename(link, s.Name) == nil
}

func (l *Links) rename(link rtnl.Link, name string) error {
	err := l.conn.Do(rtnl.Rename(link.Index, name))
	if errors.Is(err, kernel.ErrBusy) { // up, on an older kernel: repair sets it up again
		err = l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.Down()), rtnl.Rename(link.Index, name))
	}
	return err
}

// strayed reports whether a link that this agent has seen is there under another
// name. It costs nothing for one that is new.
func (l *Links) strayed(s *Spec) bool {
	index, ok := l.memory.index(s.Name)
	if !ok {
		return false
	}
	names, err := l.conn.Names(index)
	return err == nil && names[0] != "" && names[0] != s.Name
}
