package bridgeport

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/inside"
	"github.com/berth-net/berth/internal/stamp"
)

// acquire makes the pair. If the port exists and is whole, acquire repairs the port, and leaves the inside of the pod alone, which is the pod's
// own business. If it is half-made, acquire deletes it and makes it anew. If it is cut off, acquire brings it back, unless ctx has ended.
func (p *Ports) acquire(ctx context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil {
		return err
	}
	if err := p.take(ctx, h.Owner, s); err != nil {
		return fmt.Errorf("making port %s of bridge %s for %s in %s: %w", s.Name, s.Bridge, s.Ifname, s.Netns.Path, err)
	}
	return nil
}

func (p *Ports) take(ctx context.Context, owner hold.ID, s *Spec) error {
	want, err := s.check()
	if err != nil {
		return err
	}
	pod, err := inside.Enter(context.WithoutCancel(ctx), s.Netns, nil) // create completes what it has made, or deletes it
	if errors.Is(err, ns.ErrGone) {
		return p.homeless(ctx, want, err)
	}
	if err != nil {
		return err
	}
	defer pod.Leave()
	if pod.At.Ref().Same(p.At.Ref()) {
		return hold.Unused(errors.New("this is the node's own network namespace"))
	}
	was, err := p.locate(s)
	switch {
	case err == nil && was.Group != s.groups().Coming():
		return p.repair(ctx, want, was)
	case err == nil: // an earlier try left it half-made
		if err := p.remove(s, was.Index); err != nil {
			return err
		}
	case !errors.Is(err, kernel.ErrNotFound):
		return err
	}
	return p.create(ctx, owner, pod, want)
}

// homeless is take for a pod whose network namespace is not at its path any more. If the port exists and is not half-made, the namespace lives on
// elsewhere, and homeless repairs the port. Otherwise the error is hold.ErrHomeless.
func (p *Ports) homeless(ctx context.Context, s plan, why error) error {
	l, err := p.locate(s.Spec)
	switch {
	case err == nil && l.Group != s.groups().Coming():
		return p.repair(ctx, s, l)
	case err != nil && !errors.Is(err, kernel.ErrNotFound):
		return err // locate could not look, so the port may still exist
	}
	return hold.Unused(fmt.Errorf("%w: %w", hold.ErrHomeless, why))
}

// Bridge reads a bridge of the node. If the node has no link of that name, the error is of class kernel.ErrNotFound; if the link is no bridge,
// kernel.ErrInvalid.
func (p *Ports) Bridge(name string) (b rtnl.Bridge, err error) {
	err = p.Conn.Do(rtnl.GetBridge(name, &b))
	switch {
	case errors.Is(err, kernel.ErrNotFound):
		err = fmt.Errorf("the node has no bridge %s: %w", name, err)
	case err == nil && b.Index == 0:
		err = kernel.As(kernel.ErrInvalid, fmt.Errorf("the node's link %s is no bridge", name))
	}
	return b, err
}

// create makes the pair, whose port is born down and in the coming group, and completes it. Until the pair has all that it has to have, the port
// stays so: a port in another group is whole, or others have changed it. After an error create deletes the pair; the engine also releases a hold
// whose Acquire failed.
func (p *Ports) create(ctx context.Context, owner hold.ID, pod *inside.Pod, s plan) (err error) {
	b, err := p.Bridge(s.Bridge)
	if err == nil && s.MTU > b.MTU {
		err = fmt.Errorf("the MTU %d is more than the %d of bridge %s", s.MTU, b.MTU, s.Bridge)
	}
	if err := errors.Join(err, p.lingering.Check(s.Netns), ctx.Err()); err != nil {
		return hold.Unused(err)
	}
	// A bridge may take the lowest MTU of its ports for its own, so the port has the bridge's.
	port := rtnl.End{Name: s.Name, MAC: s.host, MTU: b.MTU, Master: b.Index}
	end := rtnl.End{Name: s.Ifname, MAC: s.mac, MTU: cmp.Or(s.MTU, b.MTU)}
	if err := p.Conn.Do(rtnl.AddVeth(port, s.groups().Coming(), end, pod.At.Fd())); err != nil {
		return hold.Unused(p.taken(s.Spec, err))
	}
	born, err := p.locate(s.Spec)
	if err != nil {
		return err
	}
	up := false
	defer func() {
		if err == nil {
			return
		}
		gone := p.remove(s.Spec, born.Index)
		if err = errors.Join(err, gone); !up && gone == nil {
			err = hold.Unused(err)
		}
	}()
	if err := p.mark(s, b, born.Index); err != nil {
		return err
	}
	var in rtnl.Link
	if err := pod.Conn.Do(rtnl.GetLinkAt(born.Peer, &in)); err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	if err := pod.Prepare(s.face(), in); err != nil {
		return err
	}
	if err := p.stays(ctx, owner); err != nil {
		return err
	}
	if err := pod.Open(s.face(), in); err != nil {
		return err
	}
	up = true
	if err := p.Conn.Do(rtnl.SetLinkAt(born.Index, rtnl.Group(s.groups().Live()), rtnl.Up()), rtnl.GetLinkAt(born.Index, &born)); err != nil {
		return err
	}
	dumb, err := pod.Unusable(s.face())
	p.announce(pod, s, in.Index) // behind Unusable, after which the pod's end can send
	p.settling(s.Name, len(dumb) > 0 || err != nil)
	return nil
}

// taken says what is in the way of a new pair.
func (p *Ports) taken(s *Spec, err error) error {
	if !errors.Is(err, kernel.ErrExists) {
		return err
	}
	var other rtnl.Link
	if p.Conn.Do(rtnl.GetLink(s.Name, &other)) == nil {
		return fmt.Errorf("link %s, whose alias is %.300q, has the port's name: %w: %w", other.Name, other.Alias, hold.ErrForeign, err)
	}
	return fmt.Errorf("interface %s exists in the pod: %w: %w", s.Ifname, hold.ErrForeign, err)
}

// mark gives a new port its alias, its second name and its place on the bridge. The kernel takes none of them when it makes the link. Until then
// MAC, name and group show whose the port is.
func (p *Ports) mark(s plan, b rtnl.Bridge, index int) error {
	errs := p.Conn.Each(
		rtnl.SetLinkAt(index, rtnl.Alias(p.alias(s.Spec))),
		rtnl.AddAltNameAt(index, stamp.AltName(s.Name)),
		rtnl.SetLinkAt(index, rtnl.NoAddrGen())) // nobody talks to the node by the port itself
	if errs[0] != nil {
		return errs[0]
	}
	// Without a second name, which a kernel may lack or another link may have, only the index leads to a renamed port.
	if err := errs[2]; err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return err
	}
	var of rtnl.PortOf
	if err := p.Conn.Do(rtnl.GetPort(index, &of)); err != nil {
		return err
	}
	return p.guard(s, b, of)
}

// stays returns an error if a new port must not come up: a deletion of its owner waits, nobody can tell, or the caller has left. A plugin that
// gets no answer first writes the deletion into a file, and then looks for the port. The port has its alias by now: either the plugin finds the
// port, or Going finds the file.
func (p *Ports) stays(ctx context.Context, owner hold.ID) error {
	if going, err := p.Going(owner); err != nil {
		return fmt.Errorf("%w: %w", hold.ErrGoing, err)
	} else if going {
		return hold.ErrGoing
	}
	return ctx.Err()
}

// announce has the pod tell the network its IPv4 addresses (arp_notify). It did so when its end came up, but the bridge passed nothing on yet:
// the port came up later. To set an address is a reason to tell, too, even if it is the same one. Nobody needs the announcement whose
// neighbours do not remember another MAC, so an error is none of the pair's.
func (p *Ports) announce(pod *inside.Pod, s plan, index int) {
	_ = pod.Conn.Do(rtnl.SetLinkAt(index, rtnl.MAC(s.mac)))
}

// settle waits until the pod's addresses receive. It does nothing unless Acquire has made the pair and has not seen that they do.
func (p *Ports) settle(ctx context.Context, h hold.Hold) error {
	s, err := p.spec(h)
	if err != nil || !p.settles(s.Name) {
		return err
	}
	if err := p.awaitUse(ctx, s); err != nil {
		return err
	}
	p.settling(s.Name, false)
	return nil
}

// awaitUse waits until the addresses of the pod's end receive.
func (p *Ports) awaitUse(ctx context.Context, s *Spec) error {
	ctx, cancel := context.WithTimeout(ctx, inside.Settling)
	defer cancel()
	pod, err := inside.Enter(ctx, s.Netns, nil)
	if errors.Is(err, ns.ErrGone) {
		err = fmt.Errorf("%w: %w", hold.ErrHomeless, err)
	}
	if err == nil {
		defer pod.Leave()
		err = pod.Wait(ctx, s.face())
	}
	if err != nil {
		return fmt.Errorf("waiting for %s in %s: %w", s.Ifname, s.Netns.Path, err)
	}
	return nil
}
