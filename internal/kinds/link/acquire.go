package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// acquire makes the link. If the link exists and is whole, acquire repairs the host's side
// only, because the inside of a pod is the pod's own business. If the link is half-made, acquire
// deletes it and makes it anew. If the link is cut off, acquire brings it back, unless ctx has ended
// (see revive).
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
		return l.orHomeless(s, err)
	}
	// ADD has had the namespace open, and acquire opens and identifies it again all the same.
	// Acquire is a function of the hold's spec: a restart, a repair and a second try call it, too,
	// and none of them has an open namespace. A descriptor that only ADD hands over would be a second
	// way to say which namespace is meant. Besides, ADD opened it when ADD began, and may have waited
	// for its turn, a former link and the ledger since then. Between this look at the path and the link
	// are microseconds.
	pod, err := s.Netns.Open()
	if errors.Is(err, ns.ErrGone) {
		return l.homeless(ctx, s, macs, err)
	}
	if err != nil {
		return hold.Unused(err)
	}
	defer pod.Close()
	if pod.Ref().Same(l.conn.Ref()) {
		return hold.Unused(errors.New("this is the node's own network namespace"))
	}
	if l.strayed(s) { // else the renamed link's routes would be in the way of a new link's
		l.regain(s)
	}
	if err := l.lingers(s); err != nil {
		return hold.Unused(err)
	}
	regained := false
	for {
		link, created, err := l.create(s, macs, pod)
		whole := err == nil && !created && link.Group != l.groups.Coming()
		switch {
		case err == nil && created:
			err = l.complete(ctx, s, macs, pod, link)
		case whole:
			err = l.repair(ctx, s, macs, link)
		}
		renamed := errors.Is(err, errRenamed)
		foreign := errors.Is(err, hold.ErrForeign) && !whole // if the link is whole, a foreign route is in its way, and the link has its name
		if !regained && (renamed && created || (renamed || foreign) && l.regain(s)) {
			regained = true
			continue
		}
		if foreign {
			err = errors.Join(err, l.repairStray(ctx, s, macs))
		}
		if err != nil || created || whole {
			return err
		}
		// An earlier try left the link half-made.
		if err := l.delete(s, link.Index); err != nil {
			return err
		}
		if l.memory.waits(s.Name) {
			return stillUsed(l.lingering.of(s))
		}
		if link.Up { // ADD sets a link up only in the live group: others have moved this link back to the coming group
			l.exposed()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// repairStray repairs a link that cannot have its name back, because somebody else's link has the name.
// The link stays renamed, and its pod has its network all the same.
func (l *Links) repairStray(ctx context.Context, s *Spec, macs ends) error {
	link, err := l.elsewhere(s)
	if err != nil || link.Group == l.groups.Coming() {
		return nil // the caller's error says more
	}
	return l.repair(ctx, s, macs, link)
}

// orHomeless returns the error why or, if the pod's namespace and the link are both gone,
// hold.ErrHomeless with that error. take ends with orHomeless if a spec does not say enough to make a
// link: the agent has adopted the link, and does not know everything of its pod.
func (l *Links) orHomeless(s *Spec, why error) error {
	pod, err := s.Netns.Open()
	if err == nil {
		pod.Close()
	}
	if _, look := l.locate(s); errors.Is(err, ns.ErrGone) && errors.Is(look, kernel.ErrNotFound) {
		return fmt.Errorf("%w: %w", hold.ErrHomeless, why)
	}
	return why
}

// homeless is take for a pod whose network namespace is not at its path any more. If the
// link exists and is not half-made, the namespace lives on elsewhere, and homeless repairs
// the link. If the link is gone or half-made, the error is hold.ErrHomeless.
func (l *Links) homeless(ctx context.Context, s *Spec, macs ends, why error) error {
	link, err := l.locate(s)
	switch {
	case err == nil && link.Group != l.groups.Coming():
		var taken error
		if link.Name != s.Name {
			if taken = l.rename(link, s.Name); taken == nil {
				link.Name = s.Name
			}
		}
		err := errors.Join(taken, l.repair(ctx, s, macs, link))
		if errors.Is(err, kernel.ErrNotFound) { // the namespace may have ended since, and the link with the namespace
			err = l.orHomeless(s, err)
		}
		return err
	case err != nil && !errors.Is(err, kernel.ErrNotFound):
		return err // locate could not look, so the link may still exist
	}
	return hold.Unused(fmt.Errorf("%w: %w", hold.ErrHomeless, why))
}

// create makes the pair, with both ends down and the host's end in the coming group, and
// marks it. If the owner's link exists already, create returns that link as it is.
//
// If create makes a link again, the link gets its former index, unless another link has taken that
// index. The table counts a pod's connections by its link's index, and with another index a pod that
// deletes its end of the link would get its share of connections anew.
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
			add, get = pair(0) // another link has the index: let the kernel choose one
		case errors.Is(err, kernel.ErrNotFound):
			add, get = pair(last) // the index is free: use it; what was in the way of the first try may be gone by now
		default:
			return link, false, err
		}
	}
	if add == nil && (errors.Is(get, kernel.ErrNotFound) || get == nil && !l.born(macs, link)) {
		link, get = l.elsewhere(s) // somebody has already given its name to another link
	}
	switch {
	case add == nil && get == nil:
		if err := l.mark(s, &link); err != nil {
			gone := l.delete(s, link.Index)
			if err = errors.Join(err, gone); gone == nil {
				err = hold.Unused(err)
			}
			return link, false, err
		}
		return link, true, nil
	case add == nil && errors.Is(get, kernel.ErrNotFound): // the pod has deleted it meanwhile
		return link, false, hold.Unused(get)
	case add == nil: // the engine also releases a hold whose Acquire failed
		return link, false, get
	case !errors.Is(add, kernel.ErrExists):
		return link, false, hold.Unused(add)
	case errors.Is(get, kernel.ErrNotFound): // no link has the host's name, so an interface in the pod has the pod's name
		return link, false, hold.Unused(fmt.Errorf("interface %s exists in the pod: %w", s.Ifname, hold.ErrForeign))
	case get == nil && !l.owns(s, link):
		return link, false, fmt.Errorf("the name %s leads to link %s, whose alias is %q: %w", s.Name, link.Name, link.Alias, hold.ErrForeign)
	}
	return link, false, get
}

// born reports whether a link is as create makes it, before mark has marked the link.
func (l *Links) born(macs ends, link rtnl.Link) bool {
	return link.Veth && link.Alias == "" && link.Given == "" && link.Group == l.groups.Coming() &&
		(len(macs.host) == 0 || link.MAC == macs.host.String())
}

// mark gives a new link its second name and its alias, by which Links finds and recognizes the link
// even if somebody renames it. If a link of the same owner, which somebody has renamed, has the second
// name already, the error is hold.ErrForeign. If somebody else's link has that name, the new link gets
// no second name.
func (l *Links) mark(s *Spec, link *rtnl.Link) error {
	l.memory.born(s.Name, link.Index)
	alt := stamp.AltName(s.Name)
	var other rtnl.Link
	errs := l.conn.Each(rtnl.AddAltNameAt(link.Index, alt), rtnl.SetLinkAt(link.Index, rtnl.Alias(l.alias(s))))
	named, err := errs[0], errs[1]
	if err != nil {
		return err
	}
	link.Alias = l.alias(s)
	if errors.Is(named, kernel.ErrExists) && l.conn.Do(rtnl.GetAltLink(alt, &other)) == nil && l.owns(s, other) {
		return fmt.Errorf("somebody has renamed link %s to %s: %w", s.Name, other.Name, hold.ErrForeign)
	}
	return nil
}

// alias returns the alias that a link has to have. The alias names the last ADD that the agent answered
// with this link. The spec names the first such ADD only, but a plugin that does an older DEL without
// an agent goes by the alias.
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

// Restamp writes into a link's alias that the link is there for an ADD that began at start
// (CLOCK_BOOTTIME in nanoseconds). If the link is gone with the pod's network namespace, the
// error is hold.ErrHomeless.
func (l *Links) Restamp(s *Spec, start int64) error {
	of, ok := stamp.Parse(s.Alias)
	if !ok {
		return nil
	}
	link, err := l.locate(s)
	if err == nil { // by index, since somebody may give its name to another link
		err = l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.Alias(of.Since(start))))
	}
	if err != nil {
		if errors.Is(err, kernel.ErrNotFound) {
			err = l.orHomeless(s, err)
		}
		return fmt.Errorf("changing the alias of link %s: %w", s.Name, err)
	}
	return nil
}

// complete brings a new pair up. It does the pod's side first. So a link in the live group
// can lack something on the host's side only, which Verify sees and repair completes. The
// host's end comes up last: until then the pod's end has no carrier, and no request about the pod's end
// has to wait while the kernel walks the node's routes. Before that, complete asks whether a deletion
// of the owner waits (stays).
func (l *Links) complete(ctx context.Context, s *Spec, macs ends, pod *ns.Netns, link rtnl.Link) (err error) {
	up := false
	defer func() {
		if err == nil {
			return
		}
		idle := !up && l.idle(link.Index)
		gone := l.delete(s, link.Index) // best effort: the engine also releases a hold whose Acquire failed
		if err = errors.Join(err, gone); idle && gone == nil {
			err = hold.Unused(err)
		}
	}()
	inside, err := furnishPod(s, macs, pod, link.Peer)
	if err != nil {
		return fmt.Errorf("in the pod: %w", err)
	}
	defer inside.Close()
	if err := errors.Join(l.stays(s), ctx.Err()); err != nil {
		return err
	}
	if up, err = l.furnishHost(s, macs, link, nothing()); err != nil {
		return err
	}
	settled, err := glanceInside(s, inside)
	l.memory.settling(s.Name, !settled)
	return err
}

// stays returns hold.ErrGoing if a deletion of a new link's owner waits, or if nobody can tell. A
// plugin that gets no answer first writes the deletion into a file, and then looks for the link. The
// link has its alias by now: either the plugin finds the link and deletes it, or stays finds the file.
// So a pod whose DEL has succeeded gets no network, however long the commits of its ADD and of its
// deletion take.
func (l *Links) stays(s *Spec) error {
	id, _ := stamp.LinkID(s.Name)
	going, err := l.going(id)
	if err != nil {
		return fmt.Errorf("%w: %w", hold.ErrGoing, err)
	}
	if going {
		return hold.ErrGoing
	}
	return nil
}

// idle reports whether the host's end of a new link, which furnishHost has not set up, is as create left
// it: down, so that no packet has passed. Others may have set it up. It may also be gone, because the pod
// has deleted its own end.
func (l *Links) idle(index int) bool {
	var now rtnl.Link
	err := l.conn.Do(rtnl.GetLinkAt(index, &now))
	return errors.Is(err, kernel.ErrNotFound) || err == nil && !now.Up && now.Group == l.groups.Coming()
}

// repair brings the host's side of a link back to what its spec says.
func (l *Links) repair(ctx context.Context, s *Spec, macs ends, link rtnl.Link) error {
	if l.groups.IsDying(link.Group) {
		return l.revive(ctx, s, macs, link)
	}
	return l.refurnish(s, macs, link)
}

// revive is repair for a link that is cut off although its owner is wanted: somebody else has
// moved the link to a dying group, or Links cut the link off for a deletion that was meant for another
// link.
//
// revive cannot undo a cut that is meant. The engine acquires holds of wanted owners alone, one caller
// at a time for each owner. Before the engine cuts a hold off it ends ctx, and waits until Acquire has
// returned. Should the engine not wait, the claim decides: revive does nothing once ctx has ended, and
// a cut that begins later waits for revive and cuts the link off again.
func (l *Links) revive(ctx context.Context, s *Spec, macs ends, link rtnl.Link) error {
	done, err := l.claims.claim(ctx, s.Name)
	if err != nil {
		return fmt.Errorf("the link is cut off (group %d): %w", link.Group, err)
	}
	defer done()
	if ctx.Err() != nil {
		return fmt.Errorf("the link is cut off (group %d): %w", link.Group, context.Cause(ctx))
	}
	if err := l.refurnish(s, macs, link); err != nil {
		return err
	}
	l.memory.revived(s.Name)
	return nil
}

func (l *Links) refurnish(s *Spec, macs ends, link rtnl.Link) error {
	seen, err := l.look(s)
	if err != nil {
		return err
	}
	if link.Group != l.groups.Live() || link.Master != 0 {
		defer l.exposed() // also if furnishHost fails
	}
	_, err = l.furnishHost(s, macs, link, seen)
	return err
}
