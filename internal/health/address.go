package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
)

// The names of the two owners: the owner of the responder's addresses, and the one of its link. There is one of each.
var (
	addressName   = hold.Name{Space: "agent", Name: "health"}
	responderName = hold.Name{Space: "agent", Name: "health/responder"}
)

// meta is both owners' Owner.Meta (ground.Whose).
var meta = json.RawMessage(`{"sort":"health"}`)

// resting is how long the node waits for an address that its responder had and that rests. It takes another one sooner than it
// waits longer.
const resting = 2 * time.Minute

// errUntold says that the agent does not know yet which addresses its predecessor has told the cluster.
var errUntold = errors.New("the API server has not told of this node yet")

// address returns the owner of the responder's addresses, and the addresses. If the ledger has none, or if these are not of the
// pool any more, address claims the addresses that the cluster has been told or, if these are not to be had, others.
func (h *Health) address(ctx context.Context) (id hold.ID, c ipam.Claim, err error) {
	pool, poolless := h.Pool()
	var cidrs []netip.Prefix // none without a pool, such as when the cluster has withdrawn the node's last block
	if poolless == nil {
		cidrs = h.CIDRs(pool)
	}
	if id, held := h.Ledger.Holder(addressName); held {
		o, _ := h.Ledger.Owner(id)
		if c := addresses(o); o.Wanted() && !h.Engine.Doomed(id) && fits(c, cidrs) {
			return id, c, nil
		}
		if err := h.give(ctx, id); err != nil {
			return "", c, fmt.Errorf("giving back the addresses of the former responder: %w", err)
		}
	}
	if poolless != nil {
		return "", c, poolless
	}
	h.mu.Lock()
	told, wanted := h.told, slices.Clone(h.self.Health)
	h.mu.Unlock()
	if !told {
		return "", c, errUntold
	}
	if c, err = h.claim(ctx, pool, wanted); err != nil {
		return "", c, err
	}
	o := hold.Owner{ID: hold.NewID(), Meta: meta, Names: []hold.Name{addressName}}
	for _, a := range c.Addrs() {
		o.Names = append(o.Names, ipam.Name(a))
	}
	o.Needs = h.Needs(o.Names)
	err = h.Engine.Take(ctx, o)
	if refused := (*engine.RefusedError)(nil); errors.As(err, &refused) {
		h.Unclaim(c)
	}
	return o.ID, c, err
}

// claim claims addresses: the wanted ones, as far as they can be had.
func (h *Health) claim(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error) {
	wanted = slices.DeleteFunc(wanted, func(a netip.Addr) bool { return !within(a, h.CIDRs(pool)) })
	for {
		c, err := h.Claim(ctx, pool, wanted)
		var full *ipam.ExhaustedError
		var bad *ipam.AddrError
		switch {
		case len(wanted) == 0:
			return c, err
		case errors.As(err, &full) && full.Lost: // who had which address is lost, but the cluster says who had these
			if c := of(h.Adopt(wanted)); fits(c, h.CIDRs(pool)) {
				return c, nil
			} else if len(c.Addrs()) > 0 {
				h.Unclaim(c)
			}
			return c, err
		case !errors.As(err, &bad):
			return c, err
		case errors.Is(err, ipam.ErrResting) && bad.Until.Before(h.Wall().Add(resting)):
			return c, err // the caller tries again
		}
		wanted = slices.DeleteFunc(wanted, func(a netip.Addr) bool { return a == bad.Addr })
	}
}

// addresses returns the addresses that an owner has.
func addresses(o hold.Owner) ipam.Claim {
	var addrs []netip.Addr
	for _, n := range o.Names {
		if a, err := ipam.ParseName(n); err == nil {
			addrs = append(addrs, a)
		}
	}
	return of(addrs)
}

// of returns a claim of addresses, at most one of a family.
func of(addrs []netip.Addr) (c ipam.Claim) {
	for _, a := range addrs {
		if a.Is4() {
			c.V4 = a
		} else {
			c.V6 = a
		}
	}
	return c
}

// fits reports whether a claim has an address of each family that the CIDRs have, and no other address.
func fits(c ipam.Claim, cidrs []netip.Prefix) bool {
	is4 := func(p netip.Prefix) bool { return p.Addr().Is4() }
	is6 := func(p netip.Prefix) bool { return !is4(p) }
	outside := func(a netip.Addr) bool { return !within(a, cidrs) }
	return c.V4.IsValid() == slices.ContainsFunc(cidrs, is4) && c.V6.IsValid() == slices.ContainsFunc(cidrs, is6) &&
		!slices.ContainsFunc(c.Addrs(), outside)
}

func within(a netip.Addr, cidrs []netip.Prefix) bool {
	return slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
}

// give gives owners back, with those that need them, and waits until they are gone.
func (h *Health) give(ctx context.Context, ids ...hold.ID) error {
	if err := h.Engine.Release(ctx, ids); err != nil {
		return err
	}
	return h.Engine.Wait(ctx, ids...)
}

// keepAway gives back what the node has of a responder, if it has something: its configuration wants none.
func (h *Health) keepAway(ctx context.Context) {
	h.retry(ctx, "could not give the responder back yet", func() error {
		id, held := h.Ledger.Holder(addressName)
		if !held {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, holding)
		defer cancel()
		return h.give(ctx, id)
	})
}
