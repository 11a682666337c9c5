package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/daemon"
)

// What Lacks says is one of these, and why.
var (
	ErrNone      = errors.New("the cluster has given this node no CIDRs for its pods (Node.spec.podCIDRs), and never will unless its controller manager has --allocate-node-cidrs")
	ErrRefused   = errors.New("pods of this node get no addresses of the CIDRs that the cluster means for them")
	ErrUnsettled = errors.New("pods of this node get addresses of the CIDRs that the cluster means for them, but not all that goes with a change of these is done yet, such as to give back former ones")
)

const (
	// again is how long keepGiven waits until it tells Given again.
	again = 10 * time.Second
	// noneYet is how long a Node may have no CIDRs before that is a lack: each new Node has none at first.
	noneYet = time.Minute
)

// cidrs is what a Watcher knows of its node's CIDRs.
type cidrs struct {
	wake     chan struct{} // has a token if given has changed
	patience time.Duration // noneYet, but in tests

	mu     sync.Mutex
	given  []netip.Prefix // what Given has to be told: what the Node had last, if it had any
	failed error          // what Given said of the given; nil: it has taken them, or does not know them yet
	wrong  error          // the Node has CIDRs that are none; nil: it has not
	none   time.Time      // since when the Node has none; zero: it has some
}

// saw notes the CIDRs that the Node has; err says that these are none.
func (c *cidrs) saw(given []netip.Prefix, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = nil
	switch {
	case err != nil:
		c.wrong, c.none = fmt.Errorf("%w: these are none: %w", ErrRefused, err), time.Time{}
	case len(given) > 0:
		c.given, c.none = given, time.Time{}
	case c.none.IsZero():
		c.none = now
	}
}

// told notes what Given has said of CIDRs, unless the cluster has given others meanwhile: then Given will be told of those.
func (c *cidrs) told(given []netip.Prefix, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(c.given, given) {
		c.failed = err
	}
}

// Lacks returns why the node has not the addresses that the cluster means it to have (Node.spec.podCIDRs), or what of these is not
// done yet: ErrNone, ErrRefused or ErrUnsettled. nil: nothing is wrong, or nobody knows. A Node that was made anew, and has no CIDRs
// yet, takes none from the node: pods get addresses of the former ones, and nothing lacks.
func (w *Watcher) Lacks() error {
	inForce := w.Leases == nil && len(w.InForce()) > 0
	c := &w.cidrs
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.wrong != nil:
		return c.wrong
	case c.none.IsZero():
		return c.failed
	case !inForce && time.Since(c.none) >= c.patience:
		return ErrNone
	}
	return nil
}

// keepGiven tells Given what the cluster has given to the node.
func (w *Watcher) keepGiven(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.cidrs.wake:
		}
		w.cidrs.mu.Lock()
		given := w.cidrs.given
		w.cidrs.mu.Unlock()
		err := w.Given(ctx, given)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			w.cidrs.told(given, nil)
			w.condition.took(given)
			continue
		}
		lack := ErrRefused
		if slices.Equal(w.InForce(), given) {
			lack = ErrUnsettled
		}
		w.cidrs.told(given, fmt.Errorf("%w: %w", lack, err))
		w.Log.Error("could not take the addresses that the cluster has given to this node, or not do all that goes with that; the agent tries again", "podCIDRs", given, "err", err)
		daemon.Sleep(ctx, again, w.cidrs.wake)
		stir(w.cidrs.wake)
	}
}
