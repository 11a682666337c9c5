package traffic

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/patience"
)

// untaintLimit is how long an ADD waits for a pass that a missing route of its pool makes necessary
// (ipam.Taint, Unbarred).
const untaintLimit = time.Second

// Claim takes one address of each family that the pool has or, if there are wanted addresses, these.
// If each address that Claim could take is due (its rest is over, but no pass has rinsed it yet),
// Claim does a rinsing pass first (rinse.go).
func (t *Traffic) Claim(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error) {
	c, err := t.claim(ctx, pool, wanted)
	if full := (*ipam.ExhaustedError)(nil); errors.As(err, &full) {
		t.ground.Exhausted(pool, full)
	} else if err == nil && len(wanted) == 0 { // a wanted address tells nothing about the others
		t.ground.Replenished(pool)
	}
	return c, err
}

func (t *Traffic) claim(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error) {
	if t.ground.Pools.Tainted(pool) {
		// Without the pass the claim goes on, because no pod waits for connection tracking that fails or hangs.
		_, _ = patience.Call(&t.untainting, "rinse", untaintLimit, func() (time.Time, error) { return t.rinse(context.WithoutCancel(ctx)) }, nil)
	}
	for {
		c, err := t.claimNow(pool, wanted)
		var full *ipam.ExhaustedError
		if !errors.Is(err, ipam.ErrDue) && (!errors.As(err, &full) || full.Due == 0) {
			return c, err
		}
		if _, failed := t.rinse(ctx); failed != nil || ctx.Err() != nil {
			return c, errors.Join(err, failed)
		}
	}
}

func (t *Traffic) claimNow(pool string, wanted []netip.Addr) (ipam.Claim, error) {
	now := t.Clock.Now()
	if len(wanted) > 0 {
		c, err := t.ground.Pools.ClaimExact(pool, wanted, now)
		return c, t.ToWall(err)
	}
	c, err := t.ground.Pools.Claim(pool, now)
	return c, t.ToWall(err)
}

// Unbarred has the kernel forget the connections of addresses that a new pod has just got, although packets
// to these addresses had a way out of the node a moment before: the pool's route was missing, and nobody has
// said so yet (Taint). Unbarred gives up after a second, because no pod waits for connection tracking that
// hangs.
func (t *Traffic) Unbarred(addrs []netip.Addr) {
	_, err := patience.Call(&t.untainting, "unbar", untaintLimit, func() (struct{}, error) {
		return struct{}{}, t.node.Tracked.Forget(addrs)
	}, nil)
	if err != nil {
		t.Log.Warn("a new pod's addresses had a way out of the node before, and may have connections of that time", "addresses", addrs, "err", err)
	}
}

// ToWall turns the times in an error of IPAM from times of the agent's clock into times of the wall
// clock, for people.
func (t *Traffic) ToWall(err error) error {
	var full *ipam.ExhaustedError
	var addr *ipam.AddrError
	if errors.As(err, &full) && !full.NextFree.IsZero() {
		full.NextFree = t.Clock.Wall(full.NextFree)
	}
	if errors.As(err, &addr) && !addr.Until.IsZero() {
		addr.Until = t.Clock.Wall(addr.Until)
	}
	return err
}

// Unclaim gives back addresses that nobody has used.
func (t *Traffic) Unclaim(c ipam.Claim) { t.ground.Pools.Unclaim(c, t.Clock.Now()) }
