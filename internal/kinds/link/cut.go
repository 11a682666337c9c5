package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// cut stops all traffic of a link without waiting for its deletion: it joins
// the cut group, whose packets are dropped, and the way to the pod's addresses
// ends. The cost does not depend on how many links the node has. One is cut off
// after the other: the kernel does no more at once, and ADDs do not wait behind
// all of them. One that is not called as it should be is looked for beside the others,
// since its pod's path may hang.
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
				err := l.conn.Do(rtnl.GetLinkAt(link.Index, &link)) // its name may be another's by now
				return link, err
			})
		}
	}
	if err != nil && !errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("cutting off link %s: %w", s.Name, err)
	}
	return nil
}

// cutInTurn waits for its turn, and cuts off what find finds then. It must not hang.
func (l *Links) cutInTurn(ctx context.Context, s *Spec, find func() (rtnl.Link, error)) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for others' links: %w", context.Cause(ctx))
	}
	link, err := find()
	if err != nil {
		return err
	}
	return l.cutOff(s, link)
}

// cutOff is cut for whoever has the link and the turn, and has found it.
func (l *Links) cutOff(s *Spec, link rtnl.Link) (err error) {
	if !l.groups.IsDying(link.Group) {
		err = l.conn.Regroup(l.groups.Cut(), link.Name)[0]
		if errors.Is(err, kernel.ErrNotFound) { // renamed, or gone, since
			err = l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.Group(l.groups.Cut())))
		}
	}
	if err == nil && !l.barrier() {
		err = l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.Down()))
	}
	if err != nil {
		return err
	}
	l.memory.cut(s.Name, link.Index)
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

// sever sets links down that are cut off: from then on nothing passes them,
// whoever takes the table away that drops what the cut group says. It costs ten
// times a cut, most of it with the lock of all links, so that it is done behind
// the answer to a DEL.
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

// setDown sets a link down that was cut off, whatever it is called by now; none is
// success. One that the memory does not have was not found by the cut, or is deleted.
func (l *Links) setDown(s *Spec) error {
	index, known := l.memory.index(s.Name)
	if !known {
		return nil
	}
	var link rtnl.Link
	err := l.conn.Do(rtnl.GetLinkAt(index, &link))
	if err == nil && !l.owns(s, link) { // the index is another's by now
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

// DownDying sets all links down that are cut off and not deleted yet: for when
// the table that drops what they send is seen to differ. It knows them without
// listing any: those that this agent has cut off, as a restart does anew.
func (l *Links) DownDying(ctx context.Context) error {
	var errs []error
	for _, name := range l.memory.dying() {
		err := ctx.Err()
		if err == nil {
			err = l.setDown(&Spec{Name: name})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("setting link %s down: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
