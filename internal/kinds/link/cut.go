package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// cut stops all traffic of a link without waiting for its deletion: it moves the link to
// the cut group, whose packets the agent's table drops, and deletes the routes to the pod's
// addresses. The cost does not depend on how many links the node has. Links are cut off one
// after the other: the kernel would do only one at a time anyway, and so no ADD has to wait
// behind all of them. While cut looks for a link that does not have its name, other links
// are cut off meanwhile, because that link's pod may have a path that hangs.
func (l *Links) cut(ctx context.Context, h hold.Hold) error {
	s, err := l.spec(h)
	if err != nil {
		return err
	}
	done, err := l.claims.claim(ctx, s.Name)
	if err != nil {
		return fmt.Errorf("waiting to cut off link %s: %w", s.Name, err)
	}
	defer done()
	err = l.cutInTurn(ctx, s, func() (rtnl.Link, error) { return l.called(s) })
	if errors.Is(err, kernel.ErrNotFound) {
		var link rtnl.Link
		if link, err = l.locate(s); err == nil {
			err = l.cutInTurn(ctx, s, func() (rtnl.Link, error) {
				err := l.conn.Do(rtnl.GetLinkAt(link.Index, &link)) // by index, since it may have been renamed again
				return link, err
			})
		}
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("cutting off link %s: %w", s.Name, err)
	}
	return nil
}

// cutInTurn waits for its turn, and then cuts off the link that find finds. find must not
// hang.
func (l *Links) cutInTurn(ctx context.Context, s *Spec, find func() (rtnl.Link, error)) error {
	done, err := l.turn.Take(ctx)
	if err != nil {
		return fmt.Errorf("waiting for the cuts of other links: %w", err)
	}
	defer done()
	link, err := find()
	if err != nil {
		return err
	}
	return l.cutOff(s, link)
}

// cutOff cuts off a link that was found. The caller has the claim on the link and the turn.
func (l *Links) cutOff(s *Spec, link rtnl.Link) (err error) {
	if !l.groups.IsDying(link.Group) {
		err = l.conn.Regroup(l.groups.Cut(), link)[0]
	}
	// The pod would still get what waits in a queue of its link, behind all rules of the table.
	if waits := s.Ingress != (rtnl.Rate{}); err == nil && (waits || !l.barrier()) {
		err = l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.Down()))
	}
	if err != nil {
		return err
	}
	l.memory.cut(s.Name, link.Index)
	l.mirror.hear([]rtnl.News{{Change: rtnl.LinkGone, Link: link}}) // the kernel tells of no group: if the owner is wanted all the same, the sweep is to look at the link
	rs := make([]rtnl.Request, len(s.Addresses))
	for i, a := range s.Addresses {
		rs[i] = rtnl.DelRoute(hostRoute(a, link.Index))
	}
	for _, err := range l.conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return err
		}
	}
	return nil
}

// sever sets down links that are cut off. From then on nothing passes them, even if
// somebody takes away the table that drops the cut group's packets. It costs several times as
// much as a cut, most of it with the kernel's lock of all links, which is why it is done
// behind the answer to a DEL.
//
//	ip link set NAME down
func (l *Links) sever(ctx context.Context, hs []hold.Hold) error {
	var errs []error
	for _, h := range hs {
		s, err := l.spec(h)
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = l.setDown(s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("setting link %s down: %w", h.Spec, err))
		}
	}
	return errors.Join(errs...)
}

// setDown sets down a link that was cut off, even if somebody has renamed it. It succeeds
// if there is no such link. A link that the memory does not know was not found by the cut,
// or is deleted.
func (l *Links) setDown(s *Spec) error {
	index, known := l.memory.index(s.Name)
	if !known {
		return nil
	}
	var link rtnl.Link
	err := l.conn.Do(rtnl.GetLinkAt(index, &link))
	if err == nil && !l.owns(s, link) { // another link has the index by now
		link, err = l.locate(s)
	}
	if err == nil && link.Up {
		err = l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.Down()))
	}
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	return err
}

// DownDying sets down all links that are cut off and not deleted yet. The agent calls it
// when it sees that the table which drops their packets has changed. It lists no links: it takes
// the links that this agent has cut off. A restarted agent has cut them off again.
func (l *Links) DownDying(ctx context.Context) error {
	var errs []error
	for _, name := range l.memory.dying() {
		err := ctx.Err()
		if err == nil && l.memory.get(name).cut { // else it was brought back meanwhile
			err = l.setDown(&Spec{Name: name})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("setting link %s down: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
