package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// cut stops all traffic of a link without waiting for the link's deletion: it moves the link to the cut
// group, whose packets the agent's table drops, and deletes the routes to the pod's addresses. The cost
// does not depend on how many links the node has. Callers cut links off one after the other: the kernel
// would cut only one at a time anyway, and so no ADD has to wait behind all the cuts. While cut looks
// for a link that does not have its name, other callers cut off other links, because the path to that
// link's pod may hang.
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
				err := l.conn.Do(rtnl.GetLinkAt(link.Index, &link)) // by index, since somebody may have renamed the link again
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

// cutOff cuts off a link that cutInTurn has found. The caller has the claim on the link and the turn.
func (l *Links) cutOff(s *Spec, link rtnl.Link) (err error) {
	if !l.groups.IsDying(link.Group) {
		err = l.conn.Regroup(l.groups.Cut(), link)[0]
	}
	// Otherwise the pod would still get the packets in its link's queue: they have passed all rules of
	// the table.
	if waits := s.Ingress != (rtnl.Rate{}); err == nil && (waits || !l.barrier()) {
		err = l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.Down()))
	}
	if err != nil {
		return err
	}
	l.memory.cut(s.Name, link.Index)
	l.mirror.hear([]rtnl.News{{Change: rtnl.LinkGone, Link: link}}) // the kernel's news do not tell the group; if the owner is wanted all the same, a sweep has to look at the link
	rs := make([]rtnl.Request, len(s.Addresses))
	for i, a := range s.Addresses {
		rs[i] = rtnl.DelRoute(withMetric(hostRoute(a, link.Index), 0)) // an agent of another version may have chosen another metric
	}
	for _, err := range l.conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return err
		}
	}
	return nil
}

// sever sets down links that are cut off. From then on nothing passes them, even if
// somebody takes away the table that drops the cut group's packets. sever costs several times as much
// as a cut, most of it under the kernel's lock of all links. So the engine calls sever only after the
// answer to a DEL.
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

// setDown sets down a link that was cut off, even if somebody has renamed it. It succeeds if there is
// no such link. If the memory does not know the link, the cut did not find the link, or Links has
// deleted it.
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

// DownDying sets down all links that are cut off and not deleted yet. The agent calls DownDying when it
// sees that the table which drops these links' packets has changed. DownDying lists no links: it takes
// the links that this agent has cut off. A restarted agent has cut off again what the former one cut
// off.
func (l *Links) DownDying(ctx context.Context) error {
	var errs []error
	for _, name := range l.memory.dying() {
		err := ctx.Err()
		if err == nil && l.memory.get(name).cut { // else Acquire has brought the link back meanwhile
			err = l.setDown(&Spec{Name: name})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("setting link %s down: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
