package ways

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/vxlan"
)

// device is the tunnel's device, and the nodes that it sends to.
type device struct {
	owner hold.ID
	vxlan.Device
	changed bool // others have changed it
	nodes   []netip.Addr
}

func (d *device) String() string { return fmt.Sprintf("%s of %s to %v", &d.Device, d.owner, d.nodes) }

func (k Tunnel) DeviceKind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(vxlan.Device) },
		Acquire: k.acquire,
		Verify:  hold.VerifyEach(k.verify),
		Release: hold.Each(k.release),
		Find:    k.find,
		Waits:   true,
	}
}

func (k Tunnel) acquire(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*vxlan.Device)
	return k.Step("tunnel", "add "+s.String(), func() error {
		switch {
		case k.tunnel == nil:
			k.tunnel = &device{owner: h.Owner}
		case k.tunnel.owner != h.Owner:
			return fmt.Errorf("%s: %w", s, hold.ErrForeign)
		}
		k.tunnel.Device, k.tunnel.changed = *s, false
		return nil
	})
}

func (k Tunnel) verify(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*vxlan.Device)
	k.Lock()
	defer k.Unlock()
	switch {
	case k.tunnel == nil || k.tunnel.owner != h.Owner:
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	case k.tunnel.changed || k.tunnel.Device.String() != s.String():
		return fmt.Errorf("%s: %w", s, hold.ErrChanged)
	}
	return nil
}

// release deletes the device, with the routes that lead by it.
func (k Tunnel) release(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*vxlan.Device)
	return k.Step("tunnel", "delete "+s.String(), func() error {
		if k.tunnel != nil && k.tunnel.owner == h.Owner && k.tunnel.Device.String() == s.String() {
			k.Untunnel()
		}
		return nil
	})
}

func (k Tunnel) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	k.Lock()
	defer k.Unlock()
	if k.tunnel == nil {
		return nil, nil
	}
	spec := k.tunnel.Device
	return []hold.Hold{{Owner: k.tunnel.owner, Spec: &spec}}, nil
}

func (k Tunnel) PeerKind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(vxlan.Peer) },
		Acquire: k.acquirePeer,
		Verify:  hold.VerifyEach(k.verifyPeer),
		Release: hold.Each(k.releasePeer),
		Batch:   32,
		Find:    k.findPeers,
	}
}

func (k Tunnel) acquirePeer(_ context.Context, h hold.Hold) error {
	p := h.Spec.(*vxlan.Peer)
	return k.Step("tunnel", "add "+p.String(), func() error {
		if k.tunnel == nil {
			return fmt.Errorf("%s: there is no tunnel", p)
		}
		if !slices.Contains(k.tunnel.nodes, p.Node) {
			k.tunnel.nodes = append(k.tunnel.nodes, p.Node)
		}
		return nil
	})
}

func (k Tunnel) verifyPeer(_ context.Context, h hold.Hold) error {
	p := h.Spec.(*vxlan.Peer)
	k.Lock()
	defer k.Unlock()
	if k.tunnel == nil || !slices.Contains(k.tunnel.nodes, p.Node) {
		return fmt.Errorf("%s: %w", p, hold.ErrGone)
	}
	return nil
}

func (k Tunnel) releasePeer(_ context.Context, h hold.Hold) error {
	p := h.Spec.(*vxlan.Peer)
	return k.Step("tunnel", "delete "+p.String(), func() error {
		if k.tunnel != nil {
			k.tunnel.nodes = slices.DeleteFunc(k.tunnel.nodes, func(a netip.Addr) bool { return a == p.Node })
		}
		return nil
	})
}

func (k Tunnel) findPeers(context.Context, *hold.Look) ([]hold.Hold, error) {
	k.Lock()
	defer k.Unlock()
	if k.tunnel == nil {
		return nil, nil
	}
	var all []hold.Hold
	for _, a := range k.tunnel.nodes {
		all = append(all, hold.Hold{Spec: &vxlan.Peer{Instance: k.Instance, Node: a}})
	}
	return all, nil
}
