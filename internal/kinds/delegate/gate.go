package delegate

import (
	"context"
	"fmt"
	"time"
)

// shut makes the ADDs of a network wait until open is called. first is false if somebody has shut the network already.
func (d *Delegates) shut(network string) (open func(), first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shutNow[network] != nil {
		return nil, false
	}
	end := make(chan struct{})
	d.shutNow[network] = end
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.shutNow, network)
		close(end)
	}, true
}

// await waits until no GC of a network is under way: the GC's list of attachments may lack the one whose ADD begins now. A GC is killed
// when its time is over (GCTime).
func (d *Delegates) await(ctx context.Context, network string) error {
	for {
		d.mu.Lock()
		end := d.shutNow[network]
		d.mu.Unlock()
		if end == nil {
			return nil
		}
		select {
		case <-end:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the GC of network %s: %w", network, ctx.Err())
		}
	}
}

// maxLately is how many networks are remembered. Names of networks come from users.
const maxLately = 256

// remember notes the list of a network for which plugins are executed.
func (d *Delegates) remember(s *Spec) {
	l, err := s.list()
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.last[s.Network]; !known && len(d.last) >= maxLately {
		for any := range d.last {
			delete(d.last, any)
			break
		}
	}
	d.last[s.Network] = l
}

// lately returns the lists that are remembered.
func (d *Delegates) lately() (all []*Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.last {
		all = append(all, l)
	}
	return all
}

// toKill is the time in which a runner kills a plugin, and answers.
const toKill = time.Second

// patient is a context that ends later than it says: a runner kills a plugin when the context's deadline has come, and the caller
// still hears that the plugin has ended.
type patient struct {
	context.Context
	end time.Time
}

// Deadline is context.Context's.
func (p patient) Deadline() (time.Time, bool) { return p.end, true }

// within returns a context in which plugins have a limit of time.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	end := time.Now().Add(limit)
	ctx, cancel := context.WithDeadline(ctx, end.Add(toKill))
	if last, _ := ctx.Deadline(); last.Before(end) {
		end = last
	}
	return patient{ctx, end}, cancel
}
