package link

import (
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// locate finds the host's end of a link, even if somebody has renamed it: a renamed link
// still carries its pod's traffic. If nothing leads to the link the error is
// kernel.ErrNotFound. In the usual case, when the link has its name, locate costs one
// look-up.
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

// called finds a link by its name. If no link has the name the error is kernel.ErrNotFound. If a link
// has the name but does not prove to be the owner's, the error is kernel.ErrNotFound, too, and called
// returns that link with the error.
func (l *Links) called(s *Spec) (link rtnl.Link, err error) {
	if err := l.conn.Do(rtnl.GetLink(s.Name, &link)); err != nil {
		return rtnl.Link{}, err
	}
	if !l.owns(s, link) {
		return link, kernel.As(kernel.ErrNotFound, fmt.Errorf("link %s is not the owner's", s.Name))
	}
	l.memory.see(s.Name, link.Index)
	return link, nil
}

// elsewhere finds a link that does not have its name any more. It tries these ways. All but the
// last take constant time:
//
//  1. its second name, which ADD gave the link and which a rename leaves;
//  2. its index, if this agent has seen the link;
//  3. the host's routes to the pod's addresses;
//  4. the pod's interface, which knows the index of its other end;
//  5. the list of all links, once in the agent's life. From then on the memory knows of
//     each link that is made.
//
// A link that elsewhere finds that way has to have the owner's alias or, if its alias is not one of
// Berth's, enough else that is the owner's. If elsewhere finds no such link the error is
// kernel.ErrNotFound. But if elsewhere finds a link that has no alias of Berth's and may be the
// owner's, the error is another (see judge).
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
	if err != nil && !errors.Is(err, kernel.ErrNotFound) && !errors.Is(err, kernel.ErrInvalid) { // ErrInvalid: a kernel without second names
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
	return rtnl.Link{}, kernel.As(kernel.ErrNotFound, fmt.Errorf("link %s does not exist, under any name", s.Name))
}

// certain turns a function that returns no error into a way for elsewhere. The function may return no
// index.
func certain(way func(*Spec) []int) func(*Spec) ([]int, error) {
	return func(s *Spec) ([]int, error) { return way(s), nil }
}

// remembered returns the index at which this agent last saw a link, and the index of a link that has
// the owner's MAC and nothing else to show whose link it is.
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

// fromList lists all links, if this Links has not done so before, and then returns the indices that the
// memory has for the link. From then on the memory knows every link that was in the list or that Links
// makes later.
func (l *Links) fromList(s *Spec) ([]int, error) {
	if l.listed.Load() {
		return nil, nil
	}
	if err := l.listOnce(); err != nil {
		return nil, fmt.Errorf("looking for %s among all links: %w", s.Name, err)
	}
	return l.remembered(s), nil
}

// routed returns the links to which Berth's routes to a pod's addresses lead.
func (l *Links) routed(s *Spec) []int {
	routes := make([]rtnl.Route, len(s.Addresses))
	var rs []rtnl.Request
	for i, a := range s.Addresses {
		rs = append(rs, rtnl.MatchRoute(a, &routes[i]))
	}
	l.conn.Each(rs...) // a route that routed cannot read leads to no link
	var indices []int
	for i, a := range s.Addresses {
		if routes[i].Index != 0 && routes[i].Dst == host(a) {
			indices = append(indices, routes[i].Index)
		}
	}
	return indices
}

// podsPeer returns the index of the other end of the pod's interface. A pod can hide that index, and
// can make its interface name any other index: the caller checks whose link has the index.
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

// regain gives the host's end its name back, if somebody has renamed it. It reports whether the link
// has its name again.
func (l *Links) regain(s *Spec) bool {
	link, err := l.elsewhere(s)
	return err == nil && l.rename(link, s.Name) == nil
}

// rename gives a link its name back. If another link of the instance, which has lost its own name, has
// the name, rename first gives that link a name of strayName: two links whose names somebody has
// exchanged would otherwise wait for each other for ever. Links still finds the other link by its
// alias, and gives it its own name back when it repairs that link.
func (l *Links) rename(link rtnl.Link, name string) error {
	l.renames.Lock()
	defer l.renames.Unlock()
	if link.Name == name {
		return nil // a kernel older than 6.2 refuses even this while the link is up
	}
	err := l.renameAt(link.Index, name)
	if !errors.Is(err, kernel.ErrExists) {
		return err
	}
	var holder rtnl.Link
	if l.conn.Do(rtnl.GetLink(name, &holder)) != nil {
		return err
	}
	if its, ok := NameOf(l.prefix, l.groups, holder); !ok || stampless(holder) || its == holder.Name {
		return err
	}
	if away := l.renameAt(holder.Index, fmt.Sprint(strayName, holder.Index)); away != nil {
		return errors.Join(err, away)
	}
	return l.renameAt(link.Index, name)
}

// strayName and a link's index are the name of a link that has to give its name to another link. No
// link that ADD makes has such a name, nor such a second name (stamp).
const strayName = "berth-"

func (l *Links) renameAt(index int, name string) error {
	err := l.conn.Do(rtnl.Rename(index, name))
	if errors.Is(err, kernel.ErrBusy) { // the link is up, and the kernel is older than 6.2; repair sets the link up again
		if l.conn.Do(rtnl.GetLink(name, new(rtnl.Link))) == nil { // setting the link down would be in vain: another link has the name
			return kernel.As(kernel.ErrExists, err)
		}
		err = l.conn.Do(rtnl.SetLinkAt(index, rtnl.Down()), rtnl.Rename(index, name))
	}
	return err
}

// strayed reports whether a link that this agent has seen now has another name. For a link that the
// agent has not seen strayed costs nothing.
func (l *Links) strayed(s *Spec) bool {
	index, ok := l.memory.index(s.Name)
	if !ok {
		return false
	}
	names, err := l.conn.Names(index)
	return err == nil && names[0] != "" && names[0] != s.Name
}
