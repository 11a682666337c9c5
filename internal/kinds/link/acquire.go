package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/stamp"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// acquire makes the link, or completes it. A link that is whole is repaired on
// the host's side alone: what a pod does inside is its own business. One that
// is half-made is made anew; one that is cut off stays so.
func (l *Links) acquire(ctx context.Context, h hold.Hold) error {
	s, err := l.spec(h)
	if err != nil {
		return err
	}
	if err := l.take(ctx, s); err != nil {
		return fmt.Errorf("making link %s for %s in %s: %w", s.Name, s.Ifname, s.Netns.Path, err)
	}
	return nil
}

func (l *Links) take(ctx context.Context, s *Spec) error {
	macs, err := s.check()
	if err != nil {
		return l.unmakeable(s, err)
	}
	pod, err := s.Netns.Open()
	if errors.Is(err, ns.ErrGone) {
		return l.homeless(s, macs, err)
	}
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod.Ref().Same(l.conn.Ref()) {
		return errors.New("this is the node's own network namespace")
	}
	if l.strayed(s) { // or its addresses' routes would be in the way of a new one
		l.regain(s)
	}
	regained := false
	for {
		link, created, err := l.create(s, macs, pod)
		if err == nil && created {
			err = l.complete(ctx, s, macs, pod, link)
		}
		if errors.Is(err, hold.ErrForeign) && !regained && l.regain(s) {
			regained = true
			continue
		}
		switch {
		case err != nil || created:
			return err
		case link.Group != l.groups.Coming():
			return l.repair(s, macs, link)
		}
		// Half-made by an earlier try.
		if err := l.delete(link.Index); err != nil {
			return err
		}
		if link.Up { // no ADD leaves one so: others have moved it there
			l.exposed()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// unmakeable answers for a spec that does not say enough to make a link: one
// that was adopted, of a pod that is not known well. It ends with its pod.
func (l *Links) unmakeable(s *Spec, why error) error {
	pod, err := s.Netns.Open()
	if err == nil {
		pod.Close()
	}
	if _, look := l.locate(s); errors.Is(err, ns.ErrGone) && errors.Is(look, kernel.ErrNotFound) {
		return fmt.Errorf("%w: %w", hold.ErrHomeless, why)
	}
	return why
}

// homeless answers for a pod whose network namespace cannot be opened. If its
// link is there and not half-made, the namespace is only out of sight.
func (l *Links) homeless(s *Spec, macs ends, why error) error {
	link, err := l.locate(s)
	switch {
	case err == nil && link.Group != l.groups.Coming():
		if link.Name != s.Name {
			if err := l.rename(link, s.Name); err != nil {
				return err
			}
		}
		return l.repair(s, macs, link)
	case err != nil && !errors.Is(err, kernel.ErrNotFound):
		return err // not seen: that proves nothing
	}
	return fmt.Errorf("%w: %w", hold.ErrHomeless, why)
}

// create makes the pair, both ends down, the host's in the coming group, and
// stamps it. A link of this name that is there already is returned as it is.
//
// A link that is made again has the index that it had, unless somebody took that: the
// table counts a pod's connections by its link's index, and a pod that deletes its end
// would begin anew.
func (l *Links) create(s *Spec, macs ends, pod *ns.Netns) (link rtnl.Link, created bool, err error) {
	last := l.memory.last(s.Name)
	pair := func(index int) (add, get error) {
		errs := l.conn.Each(
			rtnl.AddVeth(
				rtnl.End{Name: s.Name, MAC: macs.host, MTU: s.mtu(), Index: index}, l.groups.Coming(),
				rtnl.End{Name: s.Ifname, MAC: macs.pod, MTU: s.mtu()}, pod.Fd()),
			rtnl.GetLink(s.Name, &link))
		return errs[0], errs[1]
	}
	add, get := pair(last)
	if last != 0 && add != nil && errors.Is(get, kernel.ErrNotFound) {
		switch err := l.conn.Do(rtnl.GetLinkAt(last, new(rtnl.Link))); {
		case err == nil:
			add, get = pair(0) // the index is taken; a name in the pod is no reason for another one
		case errors.Is(err, kernel.ErrNotFound):
			add, get = pair(last) // whoever had it, or the name in the pod, may have gone
		default:
			return link, false, err
		}
	}
	switch {
	case add == nil && get == nil:
		if err := l.mark(s, &link); err != nil {
			return link, false, errors.Join(err, l.delete(link.Index))
		}
		return link, true, nil
	case add == nil:
		return link, false, errors.Join(get, l.deleteNamed(s.Name))
	case !errors.Is(add, kernel.ErrExists):
		return link, false, add
	case errors.Is(get, kernel.ErrNotFound): // so it is the other name
		return link, false, fmt.Errorf("interface %s exists in the pod: %w", s.Ifname, hold.ErrForeign)
	case get == nil && !l.owns(s, link):
		return link, false, fmt.Errorf("link %s is %s, of %q: %w", s.Name, link.Name, link.Alias, hold.ErrForeign)
	}
	return link, false, get
}

// mark says whose a new link is: from here on it is found, and known, whatever
// somebody calls it. A second name that is taken is a link of this owner that was
// renamed (hold.ErrForeign), or not worth a failure.
func (l *Links) mark(s *Spec, link *rtnl.Link) error {
	l.memory.see(s.Name, link.Index)
	alt := stamp.AltName(s.Name)
	var other rtnl.Link
	errs := l.conn.Each(rtnl.AddAltName(s.Name, alt), rtnl.SetLinkAt(link.Index, rtnl.Alias(l.alias(s))))
	named, err := errs[0], errs[1]
	if err != nil {
		return err
	}
	link.Alias = l.alias(s)
	if errors.Is(named, kernel.ErrExists) && l.conn.Do(rtnl.GetAltLink(alt, &other)) == nil && l.owns(s, other) {
		return fmt.Errorf("link %s is called %s: %w", s.Name, other.Name, hold.ErrForeign)
	}
	return nil
}

// alias is what a link's alias is to say. An ADD that was asked again stands in no spec,
// and a DEL from before it, without an agent, goes by the alias.
func (l *Links) alias(s *Spec) string {
	of, ok := stamp.Parse(s.Alias)
	id, named := stamp.LinkID(s.Name)
	if !ok || !named {
		return s.Alias
	}
	if since := l.since(id); since > of.Start {
		return of.Since(since)
	}
	return s.Alias
}

// Restamp has a link's alias say that an ADD which began at start (CLOCK_BOOTTIME in
// nanoseconds) is the one that it is there for.
func (l *Links) Restamp(s *Spec, start int64) error {
	of, ok := stamp.Parse(s.Alias)
	if !ok {
		return nil
	}
	if err := l.conn.Do(rtnl.SetLink(s.Name, rtnl.Alias(of.Since(start)))); err != nil {
		return fmt.Errorf("link %s: its alias: %w", s.Name, err)
	}
	return nil
}

// complete brings a new pair up. The pod's side comes first, so that a link
// which is in the live group is whole but for the host's side, which Verify
// sees and repair completes. The host's end comes up last: until then there is
// no carrier, and nothing the pod's end does has to wait for the node's routes.
func (l *Links) complete(ctx context.Context, s *Spec, macs ends, pod *ns.Netns, link rtnl.Link) (err error) {
	defer func() {
		if err != nil { // best effort: the engine releases what failed as well
			err = errors.Join(err, l.delete(link.Index))
		}
	}()
	inside, err := furnishPod(s, macs, pod, link.Peer)
	if err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	defer inside.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.furnishHost(s, macs, link, nothing()); err != nil {
		return err
	}
	settled, err := glanceInside(s, inside)
	l.memory.settling(s.Name, !settled)
	return err
}

// repair brings the host's side of a link back to what its spec says.
func (l *Links) repair(s *Spec, macs ends, link rtnl.Link) error {
	if l.groups.IsDying(link.Group) {
		return fmt.Errorf("it is cut off (group %d)", link.Group)
	}
	seen, err := l.look(s)
	if err != nil {
		return err
	}
	if link.Group != l.groups.Live() || link.Master != 0 {
		defer l.exposed() // whatever else fails
	}
	return l.furnishHost(s, macs, link, seen)
}

// delete deletes a link by its index; none is success.
func (l *Links) delete(index int) error { return ignoreGone(l.conn.Do(rtnl.DelLinkAt(index))) }

// deleteNamed deletes a link by its name; none is success.
func (l *Links) deleteNamed(name string) error { return ignoreGone(l.conn.Do(rtnl.DelLink(name))) }

func ignoreGone(err error) error {
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	return err
}
