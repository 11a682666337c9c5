package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/patience"
)

const (
	// claimLimit is how long a claim waits for the table, or for connection tracking, which others may keep busy.
	claimLimit = time.Second
	// mostStrangers is how many addresses one claim passes over because somebody else has them.
	mostStrangers = 1024
)

// Claim takes one address of each family that the pool has or, if there are wanted addresses, these.
// If each address that Claim could take is due (its rest is over, but no pass has rinsed it yet),
// Claim does a rinsing pass first (rinse.go). If somebody else has an address on this node, the address
// rests for a minute, and Claim takes another one.
func (t *Traffic) Claim(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error) {
	c, err := t.claimOwn(ctx, pool, wanted)
	if full := (*ipam.ExhaustedError)(nil); errors.As(err, &full) {
		t.ground.Exhausted(pool, full)
	} else if err == nil && len(wanted) == 0 { // a wanted address tells nothing about the others
		t.ground.Replenished(pool)
	}
	return c, err
}

// claimOwn claims addresses that nobody else has, and has the kernel forget connections by which others
// could reach them already.
func (t *Traffic) claimOwn(ctx context.Context, pool string, wanted []netip.Addr) (c ipam.Claim, err error) {
	for range mostStrangers {
		if c, err = t.claim(ctx, pool, wanted); err != nil {
			return c, err
		}
		others := t.node.Conn.Reached(c.Addrs())
		if len(others) == 0 {
			others = t.Ports.Theirs(c.Addrs())
		}
		if len(others) == 0 {
			t.unbar(c.Addrs())
			return c, nil
		}
		for _, a := range others {
			t.ground.Pools.Free(a, t.Clock.Now().Add(restOn))
			err = &ipam.AddrError{Pool: pool, Addr: a, Err: ipam.ErrElsewhere}
		}
		t.Unclaim(c)
		if len(wanted) > 0 {
			break
		}
	}
	return ipam.Claim{}, err
}

// unbar has the kernel forget the connections of those among claimed addresses that others may have reached past the
// pods: strays, doubtful ones, and all of them where the table cannot tell. The claim goes on without a pass over
// connection tracking that takes too long (forget), because no pod waits for connection tracking that hangs.
func (t *Traffic) unbar(claimed []netip.Addr) {
	reached, whole, cleared, err := t.strays(claimed)
	if !whole {
		reached, err = claimed, errors.Join(err, t.suspect())
		defer t.Rests() // the pass for all other addresses comes behind this claim's
	}
	t.drop(claimed, reached, cleared, err)
}

// Unbar does for addresses in use, to which the pods have their routes by now, what Claim did before somebody could
// reach them: between the two, somebody may have begun connections past the pods. On a kernel that notes nothing, Claim's
// pass is all that there is. Addresses that are settled (ipam.Settle) keep their connections: their pods have been reached for long.
func (t *Traffic) Unbar(addrs []netip.Addr) {
	settled := t.ground.Pools.Settled(addrs)
	fresh := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return slices.Contains(settled, a) })
	if t.notes() && len(fresh) > 0 {
		t.unbar(fresh)
	}
	if t.notes() && len(settled) > 0 {
		t.clear(settled)
	}
	t.ground.Pools.Settle(fresh)
}

// clear has the table forget what it has noted of settled addresses, whose pods keep their connections.
func (t *Traffic) clear(settled []netip.Addr) {
	_, _ = within(t, "settled", func() (none struct{}, err error) {
		found, _, err := t.node.Table.Strays(settled)
		if err == nil && len(found) > 0 {
			err = t.node.Table.ClearStrays(found)
		}
		return none, err
	})
}

// drop has the kernel forget the connections of those among claimed addresses that others have reached, and of doubtful
// ones. cleared is what strays returned, and err is what went wrong before.
func (t *Traffic) drop(claimed, reached []netip.Addr, cleared bool, err error) {
	before := t.ground.Pools.Taints()
	for _, a := range t.ground.Pools.Doubtful(claimed) { // behind the question to the table, because suspect taints behind the mark
		if !slices.Contains(reached, a) {
			reached = append(reached, a)
		}
	}
	if len(reached) > 0 {
		kept := t.forget(reached)
		if err = errors.Join(err, kept); kept == nil {
			t.ground.Pools.Trust(reached, before)
			if cleared { // otherwise the table may clear what it notes from now on
				t.forgot(reached)
			}
		}
	}
	if err != nil {
		t.Log.Warn("others may have had connections with a pod's addresses, and the kernel may still know these", "addresses", claimed, "err", err)
	}
}

// within returns what do returns, or an error if do takes longer than claimLimit.
func within[T any](t *Traffic, name string, do func() (T, error)) (T, error) {
	got, err := patience.Call(&t.claiming, name, claimLimit, do, nil)
	if errors.Is(err, patience.ErrHangs) {
		err = fmt.Errorf("%s: the kernel does not answer in time", name)
	}
	return got, err
}

func (t *Traffic) claim(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error) {
	if t.ground.Pools.Tainted(pool) {
		// Without the pass the claim goes on, because no pod waits for connection tracking that fails or hangs.
		_, _ = patience.Call(&t.claiming, "rinse", claimLimit, func() (time.Time, error) { return t.rinse(context.WithoutCancel(ctx)) }, nil)
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
func (t *Traffic) Unclaim(c ipam.Claim) {
	t.ground.Pools.Unclaim(c, t.Clock.Now())
	t.Rests() // some may be due (ipam.Taint)
}
