package macvlan

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// acquire makes the macvlan. If the macvlan exists and is whole, acquire repairs what makes it the owner's (repair),
// because the inside of a pod is the pod's own business. If it is half-made, acquire deletes it and makes it anew. If
// it is cut off, acquire brings it back, unless ctx has ended.
func (m *Macvlans) acquire(ctx context.Context, h hold.Hold) error {
	s, err := m.spec(h)
	if err != nil {
		return err
	}
	if err := m.take(ctx, h.Owner, s); err != nil {
		return fmt.Errorf("making macvlan %s on %s in %s: %w", s.Ifname, s.Parent, s.Netns.Path, err)
	}
	return nil
}

func (m *Macvlans) take(ctx context.Context, owner hold.ID, s *Spec) error {
	want, err := s.check()
	if err != nil {
		return err
	}
	p, err := m.enter(context.WithoutCancel(ctx), s) // what create has made it also deletes when the caller has left
	if errors.Is(err, ns.ErrGone) {
		return hold.Unused(fmt.Errorf("%w: %w", hold.ErrHomeless, err))
	}
	if err != nil {
		return err
	}
	defer p.Leave()
	if p.At.Ref().Same(m.At.Ref()) {
		return hold.Unused(errors.New("this is the node's own network namespace"))
	}
	was, err := p.locate(s)
	switch {
	case err == nil && was.Group != s.groups().Coming():
		return m.repair(ctx, p, want, was)
	case err == nil: // an earlier try left it half-made
		if err := m.remove(p, s, was.Index); err != nil {
			return err
		}
	case !errors.Is(err, errMissing):
		return err
	}
	return m.create(ctx, owner, p, want)
}

// create makes the macvlan, which is born down and in the coming group, and completes it. Until the macvlan has all
// that it has to have it stays in that group: a macvlan in another group is whole, or others have changed it.
// After an error create deletes the macvlan; the engine also releases a hold whose Acquire failed.
func (m *Macvlans) create(ctx context.Context, owner hold.ID, p *pod, s plan) (err error) {
	parent, err := m.parent(s.Spec)
	if err != nil {
		return hold.Unused(err)
	}
	if err := errors.Join(m.lingering.Check(s.Netns), ctx.Err()); err != nil {
		return hold.Unused(err)
	}
	m.forget(s.Spec)
	add := rtnl.NewMacvlan{Name: s.Ifname, MAC: s.mac, MTU: s.MTU, Parent: parent.Index, Mode: s.mode}
	err = m.Conn.Do(rtnl.AddMacvlan(add, s.groups().Coming(), p.At.Fd()))
	if errors.Is(err, kernel.ErrExists) {
		err = fmt.Errorf("interface %s exists in the pod: %w: %w", s.Ifname, hold.ErrForeign, err)
	}
	if err != nil {
		return hold.Unused(err)
	}
	born, err := p.locate(s.Spec)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.remove(p, s.Spec, born.Index))
		}
	}()
	// The kernel takes no alias when it makes a link, so the alias comes now. Until then the group and the MAC show
	// whose the macvlan is.
	if err := p.Conn.Do(rtnl.SetLinkAt(born.Index, rtnl.Alias(s.Alias))); err != nil {
		return err
	}
	if err := p.Prepare(s.face(), born.Link); err != nil {
		return err
	}
	if err := m.stays(owner); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.Open(s.face(), born.Link); err != nil {
		return err
	}
	if err := p.Conn.Do(rtnl.SetLinkAt(born.Index, rtnl.Group(s.groups().Live()))); err != nil {
		return err
	}
	dumb, err := p.Unusable(s.face())
	m.learn(s.Spec, known{parent.Index, len(dumb) > 0 || err != nil})
	return nil
}

// stays returns an error if a macvlan must not come up: a deletion of its owner waits, or nobody can tell. A plugin that gets no answer first writes
// the deletion into a file, where Going finds it.
func (m *Macvlans) stays(owner hold.ID) error {
	if going, err := m.Going(owner); err != nil {
		return fmt.Errorf("%w: %w", hold.ErrGoing, err)
	} else if going {
		return hold.ErrGoing
	}
	return nil
}

// parent reads the node's link that a spec names.
func (m *Macvlans) parent(s *Spec) (l rtnl.Macvlan, err error) {
	err = m.Conn.Do(rtnl.GetMacvlan(s.Parent, &l))
	if errors.Is(err, kernel.ErrNotFound) {
		err = fmt.Errorf("the node has no link %s: %w", s.Parent, err)
	}
	return l, err
}

// repair gives a macvlan that is whole its name, group, alias and mode. If it was cut off, although its owner is
// wanted, repair sets it up again, and gives it back the IPv6 addresses and the routes that it lost with that. A
// macvlan of another parent stays as it is: repair would have to take the pod's connections away to change that.
func (m *Macvlans) repair(ctx context.Context, p *pod, s plan, l rtnl.Macvlan) error {
	parent, err := m.parent(s.Spec)
	if err != nil {
		return err
	}
	if err := m.hasParent(p, parent, l); err != nil {
		return err
	}
	if l.Name != s.Ifname {
		if err := p.rename(l, s.Ifname); err != nil {
			return err
		}
	}
	if l.Mode != s.mode {
		if err := p.Conn.Do(rtnl.SetMacvlanMode(l.Index, s.mode)); err != nil {
			return err
		}
	}
	var settings []rtnl.Setting
	if l.Alias != s.Alias {
		settings = append(settings, rtnl.Alias(s.Alias))
	}
	if l.Group != s.groups().Live() {
		settings = append(settings, rtnl.Group(s.groups().Live()))
	}
	if s.groups().IsDying(l.Group) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the macvlan is cut off (group %d): %w", l.Group, err)
		}
		var err error
		if !s.Bare { // a bare one's sysctls are those of its addresses by now
			err = p.Prepare(s.face(), l.Link)
		}
		if err := errors.Join(err, p.Open(s.face(), l.Link)); err != nil {
			return err
		}
	}
	if len(settings) > 0 {
		if err := p.Conn.Do(rtnl.SetLinkAt(l.Index, settings...)); err != nil {
			return err
		}
	}
	m.learn(s.Spec, known{parent: parent.Index})
	return nil
}

// rename gives a macvlan its name back. If an interface of the pod has the name, the error is hold.ErrForeign.
func (p *pod) rename(l rtnl.Macvlan, name string) error {
	err := p.Conn.Do(rtnl.Rename(l.Index, name))
	if errors.Is(err, kernel.ErrExists) {
		return fmt.Errorf("%w: the macvlan is called %s, and another interface has its name: %w", hold.ErrForeign, l.Name, err)
	}
	return err
}

// hasParent returns an error unless a macvlan's parent is the node's link that its spec names. If that link is a
// macvlan itself, the kernel has taken its parent instead.
func (m *Macvlans) hasParent(p *pod, parent, l rtnl.Macvlan) error {
	index, elsewhere := parent.Index, false
	if parent.Mode != 0 {
		index, elsewhere = parent.Peer, parent.PeerNetns != rtnl.NoNetns
	}
	at := rtnl.NoNetns
	if err := p.Conn.Do(rtnl.NetnsID(m.At.Fd(), &at)); err != nil {
		return err
	}
	if l.Peer != index || l.PeerNetns != at && !elsewhere {
		return fmt.Errorf("its parent is link %d (network namespace %d), not %s, which is link %d (network namespace %d): Berth leaves it as it is", l.Peer, l.PeerNetns, parent.Name, index, at)
	}
	return nil
}
