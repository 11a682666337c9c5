package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/daemon"
	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/patience"
)

// The agent makes the kernel forget a pod's traffic when the pod is released (kind flows),
// and once more when the pod's address leaves its cooldown. In between, somebody may still
// send to the address because of a rule that lags behind, and leaves traces if the pool's
// unreachable route was missing. Nobody gets the address before the second time (ipam.Due).
// One pass over the connection tracking table serves all addresses that are due.

const (
	// RinseEvery is the least time between two passes that nobody waits for.
	RinseEvery = time.Second
	// rinseAgain is the longest wait after a pass that failed.
	rinseAgain = time.Minute
	// restOn is how much longer an address rests if somebody else has it when its rest is over.
	// The kernel's entries of that address are the other user's, and stay. An ADD with that address
	// would fail.
	restOn = time.Minute
)

// Rests says that an address has begun to rest, or is due.
func (t *Traffic) Rests() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// rinse does a pass, if an address is due, and returns when the next address will be due;
// zero: none rests. A caller waits for a pass that is under way already.
func (t *Traffic) rinse(ctx context.Context) (next time.Time, err error) {
	done, err := t.turn.Take(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer done()
	t.mark()
	begun := time.Now()
	pass := t.ground.Pools.Due(t.Clock.Now())
	addrs, err := t.unknown(pass.Lost)
	addrs = append(addrs, pass.Addrs...)
	others := t.node.Conn.Reached(addrs)
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return slices.Contains(others, a) })
	if len(addrs) > 0 && err == nil {
		// A claim that has waited long enough goes on without the pass, and others may have come, too.
		theirs := flows.Others(t.node.Conn)
		err = t.node.Tracked.ForgetUnless(addrs, func(a netip.Addr) bool { return t.ground.Pools.InUse(a, t.Clock.Now()) || theirs(a) })
		if t.Observe != nil {
			t.Observe(flows.KindName, "rinse", time.Since(begun), len(addrs), err)
		}
		if err != nil {
			err = fmt.Errorf("forgetting the traffic of %d addresses whose cooldown is over: %w", len(addrs), err)
		}
	}
	if err != nil {
		if t.failed.Swap(&rinseErr{len(addrs), err}) == nil {
			t.Log.Warn("addresses stay out of use, and the agent tries again to forget their traffic", "err", err)
		}
		return pass.Next, err
	}
	t.ground.Pools.RestOn(pass, others, t.Clock.Now().Add(restOn))
	t.ground.Pools.Rinsed(pass)
	t.failed.Store(nil)
	return pass.Next, nil
}

// unknown returns the addresses in CIDRs that the kernel remembers traffic of, or that a program of the node
// has a TCP connection to, and that nobody has. Nobody knows whether pods have had them (ipam.Pass.Lost).
func (t *Traffic) unknown(lost []netip.Prefix) ([]netip.Addr, error) {
	if len(lost) == 0 {
		return nil, nil
	}
	now := t.Clock.Now()
	addrs, err := t.node.Tracked.Named(func(a netip.Addr) bool { return t.ground.Pools.Unknown(lost, a, now) })
	if err != nil {
		err = fmt.Errorf("finding the addresses in %v that the kernel remembers traffic of: %w", lost, err)
	}
	return addrs, err
}

// KeepRinsed does the passes that no ADD waits for, until ctx ends.
func (t *Traffic) KeepRinsed(ctx context.Context) {
	failed := 0 // passes in a row
	for ctx.Err() == nil {
		next, err := t.rinse(ctx)
		if err != nil {
			failed++
			daemon.Sleep(ctx, patience.Backoff(RinseEvery, rinseAgain, failed), nil)
			continue
		}
		failed = 0
		daemon.Sleep(ctx, RinseEvery, nil)
		if left := next.Sub(t.Clock.Now()); next.IsZero() {
			daemon.Sleep(ctx, time.Hour, t.wake)
		} else if left > 0 {
			daemon.Sleep(ctx, left, t.wake)
		}
	}
}

// Unrinsed returns an audit's finding that the last pass has failed, or none.
func (t *Traffic) Unrinsed() []engine.Finding {
	failed := t.failed.Load()
	if failed == nil {
		return nil
	}
	return []engine.Finding{{Type: engine.Due, Kind: flows.KindName, Err: failed.err}}
}
