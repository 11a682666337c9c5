package health

import (
	"context"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/ipam"
)

// keepTold keeps the cluster told of the responder's addresses, until ctx ends. Other nodes probe by what the cluster says, and
// this node's next agent asks for these addresses if it has no ledger. So what the cluster says stays while the agent does not
// know yet which addresses it has.
func (h *Health) keepTold(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.differs:
		}
		h.retry(ctx, "could not tell the cluster the addresses of this node's responder; the agent tries again", func() error { return h.tell(ctx) })
	}
}

// tell tells the cluster of the addresses, unless it has them.
func (h *Health) tell(ctx context.Context) error {
	h.mu.Lock()
	have, told, place := h.self.Health, h.told, h.place
	h.mu.Unlock()
	var want ipam.Claim
	switch {
	case !told, h.Enabled && place == nil:
		return nil
	case h.Enabled:
		want = place.addresses
	}
	if slices.Equal(have, want.Addrs()) || len(have)+len(want.Addrs()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, holding)
	defer cancel()
	if err := h.Annotate(ctx, valid(want.V4), valid(want.V6)); err != nil {
		return err
	}
	h.mu.Lock()
	h.self.Health = want.Addrs()
	h.mu.Unlock()
	return nil
}

// valid returns an address, nil if it is the zero address.
func valid(a netip.Addr) *netip.Addr {
	if a.IsValid() {
		return &a
	}
	return nil
}
