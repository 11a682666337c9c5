package nodetest

import (
	"context"
	"sync"

	"github.com/berth-net/berth/internal/hold"
)

// This file has the end of links on a node in memory. The rules are the real kind's: a batch of
// links joins a group of its own, and the group is deleted. Nobody cuts off one
// of the links meanwhile. Links that the group has left behind are deleted one by one.
// Between two system calls others may change the node (Node.Pause).

// claims makes sure that a cut and a deletion of one link never run at once.
type claims struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by the link's name; closed when the claim ends
}

func (c *claims) claim(ctx context.Context, names ...string) (done func(), err error) {
	mine := make(chan struct{})
	for {
		c.mu.Lock()
		var held chan struct{}
		for _, name := range names {
			if other := c.taken[name]; other != nil {
				held = other
			}
		}
		if held == nil {
			if c.taken == nil {
				c.taken = map[string]chan struct{}{}
			}
			for _, name := range names {
				c.taken[name] = mine
			}
		}
		c.mu.Unlock()
		if held == nil {
			return func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, name := range names {
					delete(c.taken, name)
				}
				close(mine)
			}, nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// cut moves a link into a dying group, and deletes the routes to it. If the table cannot be
// relied on, cut also sets the link down.
func (k links) cut(ctx context.Context, h hold.Hold) error {
	s, err := k.of(h)
	if err != nil {
		return err
	}
	k.watched("cut", h)
	done, err := k.claims.claim(ctx, s.Name)
	if err != nil {
		return err
	}
	defer done()
	k.mu.Lock()
	l := k.links[s.Name]
	dying := l != nil && k.groups.IsDying(l.Group)
	k.mu.Unlock()
	if l == nil {
		return nil
	}
	k.between()
	return k.step("link", "cut "+s.Name, func() error {
		if k.links[s.Name] != l {
			return nil
		}
		if !dying {
			l.Group = k.groups.Cut()
		}
		if !k.intact() {
			l.Up = false
		}
		k.unroute(l)
		return nil
	})
}

// release deletes links; if there are several, by a group.
func (k links) release(ctx context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	var names []string
	var of []int
	for i, h := range hs {
		s, err := k.of(h)
		if err != nil {
			errs[i] = err
			continue
		}
		k.watched("release", h)
		names, of = append(names, s.Name), append(of, i)
	}
	done, err := k.claims.claim(ctx, names...)
	if err == nil {
		defer done()
	}
	if err == nil && len(names) > 1 {
		k.deleteGroup(names)
	}
	for i, name := range names {
		if errs[of[i]] = err; err == nil {
			errs[of[i]] = k.deleteNamed(name)
		}
	}
	return errs
}

// deleteGroup deletes links by a group that only they are in. It leaves links that it
// cannot delete to deleteNamed.
func (k links) deleteGroup(names []string) {
	group := k.groups.Batch(k.batches.Add(1))
	regrouped := k.step("link", "regroup", func() error {
		for _, name := range names {
			if l := k.links[name]; l != nil {
				l.Group = group
			}
		}
		return nil
	})
	if regrouped != nil {
		return
	}
	k.between()
	_ = k.step("link", "delete group", func() error {
		for _, l := range k.links {
			if l.Group == group {
				k.unlink(l)
			}
		}
		return nil
	})
}

// deleteNamed deletes a link by its name, if it is there.
func (k links) deleteNamed(name string) error {
	k.mu.Lock()
	there := k.links[name] != nil
	k.mu.Unlock()
	if !there {
		return nil
	}
	return k.step("link", "delete "+name, func() error {
		if l := k.links[name]; l != nil {
			k.unlink(l)
		}
		return nil
	})
}
