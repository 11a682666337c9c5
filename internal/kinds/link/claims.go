package link

import (
	"context"
	"sync"
)

// claims keep a cut and a deletion of the same link apart. A deletion moves the link to a
// batch's group and then deletes the group. A cut in between would take the link out of
// that group again, and the group's deletion would miss it. Claims on different links do
// not wait for each other.
type claims struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by link name; closed when the claim ends
}

// claim waits until nobody has a claim on any of the links, and then claims them all.
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

// try claims links and returns nil. If somebody has a claim on one of the links already, try claims
// none, and returns a channel that leave closes when that claim ends.
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
