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
	link, err := l.called(s)
	if err == nil || !errors.Is(err, kernel.ErrNotFound) {
		return link, err
	}
	others := link.Index != 0
	found, err := l.elsewhere(s)
	if others && errors.Is(err, kernel.ErrNotFound) && l.groups.Has(link.Group) && l.judge(s, link) == unsure {
		err = errUnsure(s, link)
	}
	return found, err
}

// called finds a link by its name. kernel.ErrNotFound is that no link has the name, or
// that one has it, which is returned, and is somebody else's for what can be seen of it.
func (l *Links) called(s *Spec) (link rtnl.Link, err error) {
	if err := l.conn.Do(rtnl.GetLink(s.Name, &link)); err != nil {
		return rtnl.Link{}, err
	}
	if !l.owns(s, link) {
		return link, kernel.As(kernel.ErrNotFound, fmt.Errorf("link %s is another's", s.Name))
	}
	l.memory.see(s.Name, link.Index)
	return link, nil
}

// elsewhere finds a link that is not called as it should be, by whatever leads
// to it: each way in constant time. What is found has the owner's alias or, if it has
// nobody's, enough else that is the owner's. If all that is found is nobody's, and may
// be the owner's for what can be seen, that is an error, and not kernel.ErrNotFound.
//
//  1. Its second name, which ADD gave it and who renames it leaves it.
//  2. Its index, if this agent has seen the link.
//  3. The host's routes to the pod's addresses.
//  4. The pod's interface: it names the other end's index.
//  5. The list of all links, once in the agent's life. Of what is not in it the memory
//     knows since then.
func (l *Links) elsewhere(s *Spec) (rtnl.Link, error) {
	var link rtnl.Link
	var doubt error
	found := func() bool {
		switch l.judge(s, link) {
		case own:
			l.memory.see(s.Name, link.Index)
			return true
		case unsure:
			doubt = errUnsure(s, link)
		}
		return false
	}
	err := l.conn.Do(rtnl.GetAltLink(stamp.AltName(s.Name), &link))
	if err == nil && found() {
		return link, nil
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, kernel.ErrInvalid) { // a kernel without second names
		return rtnl.Link{}, err
	}
	for _, way := range []func(*Spec) ([]int, error){certain(l.remembered), certain(l.routed), certain(podsPeer), l.fromList} {
		indices, err := way(s)
		if err != nil {
			return rtnl.Link{}, err
		}
		for _, index := range indices {
			err := l.conn.Do(rtnl.GetLinkAt(index, &link))
			if err == nil && found() {
				return link, nil
			}
			if err != nil && !errors.Is(err, kernel.ErrNotFound) {
				return rtnl.Link{}, err
			}
		}
	}
	if doubt != nil {
		return rtnl.Link{}, doubt
	}
	return rtnl.Link{}, kernel.As(kernel.ErrNotFound, fmt.Errorf("no link is %s, by whatever name", s.Name))
}

// certain is a way that cannot fail, only lead nowhere.
func certain(way func(*Spec) []int) func(*Spec) ([]int, error) {
	return func(s *Spec) ([]int, error) { return way(s), nil }
}

// remembered are the index that a link was last seen at, and that of a link which says
// nothing of whose it is, but for the owner's MAC.
func (l *Links) remembered(s *Spec) []int {
	var indices []int
	if index, ok := l.memory.index(s.Name); ok {
		indices = append(indices, index)
	}
	if index := l.memory.strayed(hostMAC(s.Name)); index != 0 {
		indices = append(indices, index)
	}
	return indices
}

// fromList is what is remembered once all links have been seen, if they have not been so
// far. A link that was there since the start, or that has been made since, is remembered.
func (l *Links) fromList(s *Spec) ([]int, error) {
	if l.listed.Load() {
		return nil, nil
	}
	if err := l.listOnce(); err != nil {
		return nil, fmt.Errorf("looking for %s among all links: %w", s.Name, err)
	}
	return l.remembered(s), nil
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
// point at any index: whose the link there is that link says.
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
