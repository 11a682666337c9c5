package link

import (
	"context"
	"sync"
)

// claims keep a cut and a deletion of one link from each other. A link joins a
// batch's group, and is deleted by that: a cut in between would take it out
// again, and it would outlive its owner. Different links are in nobody's way.
type claims struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by name; closed when whoever has it is done
}

// claim waits until nobody has any of the links, and takes them all.
func (c *claims) claim(ctx context.Context, names ...string) (done func(), err error) {
	for {
		held := c.try(names)
		if held == nil {
			return func() { c.leave(names) }, nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// try takes links, unless one of them is taken: then it returns what is closed
// when that is free again.
func (c *claims) try(names []string) (held <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		if held, taken := c.taken[name]; taken {
			return held
		}
	}
	if c.taken == nil {
		c.taken = map[string]chan struct{}{}
	}
	mine := make(chan struct{})
	for _, name := range names {
		c.taken[name] = mine
	}
	return nil
}

func (c *claims) leave(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(names) > 0 {
		close(c.taken[names[0]])
	}
	for _, name := range names {
		delete(c.taken, name)
	}
}
