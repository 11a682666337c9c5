package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/poolroute"
)

// What the kernel remembers of a pod's traffic is forgotten when the pod is
// released (kind flows), and once more when its address leaves its cooldown:
// somebody who still sends to the address, by a rule that lags behind, may have
// left traces meanwhile, if the pool's unreachable route was missing. Nobody
// gets the address before that (ipam.Due). One pass over the table is for all
// addresses that are due.

const (
	// rinseEvery is the least time between two passes that nobody waits for.
	rinseEvery = time.Second
	// rinseAgain is the longest wait after a pass that failed.
	rinseAgain = time.Minute
)

// rinsing is the state of these passes.
type rinsing struct {
	turn   chan struct{}            // has a token while a pass is under way
	wake   chan struct{}            // has a token once an address has begun to rest
	failed atomic.Pointer[rinseErr] // of the last pass; nil: it succeeded
}

// rinseErr is a pass that failed.
type rinseErr struct {
	addrs int
	err   error
}

func newRinsing() rinsing {
	return rinsing{turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// rests tells that an address has begun to rest, or is due.
func (r *rinsing) rests() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// rinse does a pass, if an address is due, and returns when the next one will
// be; zero: none rests. Whoever comes while one is under way waits for it.
func (a *Agent) rinse(ctx context.Context) (next time.Time, err error) {
	select {
	case a.rinsing.turn <- struct{}{}:
		defer func() { <-a.rinsing.turn }()
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
	begun := time.Now()
	pass := a.ipam.Due(a.clock.Now())
	if len(pass.Addrs) > 0 {
		err = a.tracked.Forget(pass.Addrs)
		if a.Observe != nil {
			a.Observe(flows.KindName, "rinse", time.Since(begun), len(pass.Addrs), err)
		}
	}
	if err != nil {
		err = fmt.Errorf("forgetting the traffic of %d addresses whose cooldown is over: %w", len(pass.Addrs), err)
		if a.rinsing.failed.Swap(&rinseErr{len(pass.Addrs), err}) == nil {
			a.Log.Warn("addresses stay out of use, and it is tried again", "err", err)
		}
		return pass.Next, err
	}
	a.ipam.Rinsed(pass)
	a.rinsing.failed.Store(nil)
	return pass.Next, nil
}

// keepRinsed does the passes that nobody waits for, until ctx ends.
func (a *Agent) keepRinsed(ctx context.Context) {
	pause := rinseEvery
	for ctx.Err() == nil {
		next, err := a.rinse(ctx)
		if err != nil {
			sleep(ctx, pause, nil)
			pause = min(2*pause, rinseAgain)
			continue
		}
		pause = rinseEvery
		sleep(ctx, rinseEvery, nil)
		if left := next.Sub(a.clock.Now()); next.IsZero() {
			sleep(ctx, time.Hour, a.rinsing.wake)
		} else if left > 0 {
			sleep(ctx, left, a.rinsing.wake)
		}
	}
}

// sleep waits, until something is in early or ctx ends.
func sleep(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
	}
}

// claim takes one address of each family that the pool has, the requested ones
// first. If all that it could take is due, it sees to the pass.
func (a *Agent) claim(ctx context.Context, add *addition) (ipam.Claim, error) {
	for {
		c, err := a.claimNow(add.record.Pool, add.conf.IPs)
		var full *ipam.ExhaustedError
		if !errors.Is(err, ipam.ErrDue) && (!errors.As(err, &full) || full.Due == 0) {
			return c, err
		}
		if _, failed := a.rinse(ctx); failed != nil || ctx.Err() != nil {
			return c, errors.Join(err, failed)
		}
	}
}

func (a *Agent) claimNow(pool string, wanted []netip.Addr) (ipam.Claim, error) {
	now := a.clock.Now()
	if len(wanted) > 0 {
		c, err := a.ipam.ClaimExact(pool, wanted, now)
		return c, a.toWall(err)
	}
	c, err := a.ipam.Claim(pool, now)
	return c, a.toWall(err)
}

// toWall makes the times in an error of IPAM's, which are the agent's clock's,
// those of the wall clock, for people.
func (a *Agent) toWall(err error) error {
	var full *ipam.ExhaustedError
	var addr *ipam.AddrError
	if errors.As(err, &full) && !full.NextFree.IsZero() {
		full.NextFree = a.clock.Wall(full.NextFree)
	}
	if errors.As(err, &addr) && !addr.Until.IsZero() {
		addr.Until = a.clock.Wall(addr.Until)
	}
	return err
}

// taint is told of a hold that was not as it should be, and is mended. While a
// pool's route was missing, packets to addresses that nobody has may have left
// traces.
func (a *Agent) taint(h hold.Hold) {
	if route, ok := h.Spec.(*poolroute.Spec); ok {
		a.ipam.Taint(route.CIDR)
		a.rests()
	}
}

// unrinsed is the finding of an audit that a pass has failed.
func (a *Agent) unrinsed() []engine.Finding {
	failed := a.rinsing.failed.Load()
	if failed == nil {
		return nil
	}
	return []engine.Finding{{Type: engine.Due, Kind: flows.KindName, Err: failed.err}}
}
