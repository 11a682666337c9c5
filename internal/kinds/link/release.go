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
// all of them.
func (l *Links) cut(ctx context.Context, h hold.Hold) error {
	s, err := l.spec(h)
	if err != nil {
		return err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fmt.Errorf("waiting to cut off link %s: %w", s.Name, context.Cause(ctx))
	}
	var link rtnl.Link
	err = l.conn.Do(rtnl.GetLink(s.Name, &link))
	if err == nil && !l.groups.IsDying(link.Group) { // or it would leave the batch that is being deleted
		err = l.conn.Regroup(l.groups.Cut(), s.Name)[0]
	}
	if err == nil && !l.barrier() {
		err = l.conn.Do(rtnl.SetLink(s.Name, rtnl.Down()))
	}
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cutting off link %s: %w", s.Name, err)
	}
	rs := make([]rtnl.Request, len(s.Addresses))
	for i, a := range s.Addresses {
		rs[i] = rtnl.DelRoute(hostRoute(a, link.Index))
	}
	for _, err := range l.conn.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return fmt.Errorf("cutting off link %s: %w", s.Name, err)
		}
	}
	return nil
}

// release deletes links, many in one message.
func (l *Links) release(ctx context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	var names []string
	var of []int // which hold each name is of
	for i, h := range hs {
		s, err := l.spec(h)
		if err != nil {
			errs[i] = err
			continue
		}
		names, of = append(names, s.Name), append(of, i)
	}
	for len(names) > 0 {
		n := min(len(names), batch)
		answers := make([]error, n)
		if err := ctx.Err(); err != nil {
			for i := range answers {
				answers[i] = err
			}
		} else {
			answers = l.deleteAll(names[:n])
		}
		for i, err := range answers {
			if err != nil {
				errs[of[i]] = fmt.Errorf("deleting link %s: %w", names[i], err)
			}
		}
		names, of = names[n:], of[n:]
	}
	return errs
}

// deleteAll deletes links by a group that only they are in. Where that fails
// each is deleted by itself, for each to have its own answer. Those that are
// not there are success.
func (l *Links) deleteAll(names []string) []error {
	errs := make([]error, len(names))
	if len(names) == 1 {
		errs[0] = l.delete(names[0])
		return errs
	}
	group := l.groups.Batch(l.batches.Add(1))
	var there []int
	for i, err := range l.conn.Regroup(group, names...) {
		switch {
		case err == nil:
			there = append(there, i)
		case !errors.Is(err, kernel.ErrNotFound):
			errs[i] = err
		}
	}
	if len(there) == 0 {
		return errs
	}
	err := l.conn.Do(rtnl.DelGroup(group))
	if err == nil || errors.Is(err, kernel.ErrNotFound) { // the last of their pods may just have ended
		return errs
	}
	for _, i := range there {
		errs[i] = l.delete(names[i])
	}
	return errs
}
