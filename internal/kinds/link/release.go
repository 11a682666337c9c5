package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// release deletes links, many in one message.
func (l *Links) release(ctx context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	var specs []*Spec
	var of []int // for each spec the index of its hold
	for i, h := range hs {
		s, err := l.spec(h)
		if err != nil {
			errs[i] = err
			continue
		}
		specs, of = append(specs, s), append(of, i)
	}
	for len(specs) > 0 {
		n := min(len(specs), batch)
		for i, err := range l.deleteAll(ctx, specs[:n]) {
			if err != nil {
				errs[of[i]] = fmt.Errorf("deleting link %s: %w", specs[i].Name, err)
			}
		}
		specs, of = specs[n:], of[n:]
	}
	return errs
}

// target is a link that is about to be deleted.
type target struct {
	spec  *Spec
	index int
	name  string // the name that the link had when targets found it
	err   error
}

// deleteAll deletes links; nobody can cut them off meanwhile. It succeeds for a link only if it has
// seen that the link is gone. Neither a missing name nor a successful deletion of the group proves that
// the link is gone.
func (l *Links) deleteAll(ctx context.Context, specs []*Spec) []error {
	errs := make([]error, len(specs))
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.Name
	}
	err := ctx.Err()
	var done func()
	if err == nil {
		done, err = l.claims.claim(ctx, names...)
	}
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer done()
	targets := l.targets(specs)
	l.deleteGroup(targets)
	l.deleteRest(targets)
	for i, t := range targets {
		if errs[i] = t.err; t.err == nil {
			l.gone(t.spec.Name, t.index)
		}
	}
	return errs
}

// targets finds the links to delete.
func (l *Links) targets(specs []*Spec) []*target {
	all := make([]*target, len(specs))
	indices := make([]int, len(specs))
	for i, s := range specs {
		all[i] = &target{spec: s}
		indices[i], _ = l.memory.index(s.Name)
	}
	names, err := l.conn.Names(indices...) // the kernel answers without its lock of all links
	for i, t := range all {
		if err == nil && indices[i] != 0 && names[i] == t.spec.Name {
			t.index, t.name = indices[i], names[i]
			continue
		}
		link, err := l.locate(t.spec)
		if err == nil {
			t.index, t.name = link.Index, link.Name
		} else if !errors.Is(err, kernel.ErrNotFound) {
			t.err = err
		}
	}
	return all
}

// deleteGroup moves links into a group of their own and deletes the group. It ignores
// errors: deleteRest deletes the links that are left.
func (l *Links) deleteGroup(targets []*target) {
	var links []rtnl.Link
	var indices []int
	var specs []*Spec
	for _, t := range targets {
		if t.index != 0 {
			links, indices, specs = append(links, rtnl.Link{Index: t.index, Name: t.name}), append(indices, t.index), append(specs, t.spec)
		}
	}
	if len(links) < 2 {
		return
	}
	group := l.groups.Batch(l.batches.Add(1))
	l.conn.Regroup(group, links...)
	answered, _ := l.conn.Delete(rtnl.DelGroup(group), indices...)
	l.lingering.count(answered, specs...)
}

// deleteRest looks at each link by itself, and deletes those that still exist: the kernel
// deletes a group as a whole or not at all, and somebody may have moved a link out of it.
func (l *Links) deleteRest(targets []*target) {
	var left []*target
	var indices []int
	for _, t := range targets {
		if t.index != 0 && t.err == nil {
			left, indices = append(left, t), append(indices, t.index)
		}
	}
	names, err := l.conn.Names(indices...)
	for i, t := range left {
		switch {
		case err != nil:
			t.err = err
		case names[i] != "":
			t.err = l.deleteAt(t)
		}
	}
}

// deleteAt deletes a link that targets has found, unless another link has the index by now.
func (l *Links) deleteAt(t *target) error {
	var link rtnl.Link
	err := l.conn.Do(rtnl.GetLinkAt(t.index, &link))
	if err == nil && l.owns(t.spec, link) {
		var answered <-chan struct{}
		answered, err = l.conn.Delete(rtnl.DelLinkAt(t.index), t.index)
		l.lingering.count(answered, t.spec)
	}
	return ignoreGone(err)
}
