package nodetest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/vxlan"
)

// tunnel has the kinds of the tunnel to other nodes.
type tunnel struct{ *doors }

// device is the tunnel's device, and the nodes that it sends to.
type device struct {
	Owner hold.ID
	vxlan.Device
	Changed bool // others have changed it
	Nodes   []netip.Addr
}

func (d *device) String() string { return fmt.Sprintf("%s of %s to %v", &d.Device, d.Owner, d.Nodes) }

func (k tunnel) DeviceKind() hold.Kind {
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

func (k tunnel) acquire(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*vxlan.Device)
	return k.step("tunnel", "add "+s.String(), func() error {
		switch {
		case k.tunnel == nil:
			k.tunnel = &device{Owner: h.Owner}
		case k.tunnel.Owner != h.Owner:
			return fmt.Errorf("%s: %w", s, hold.ErrForeign)
		}
		k.tunnel.Device, k.tunnel.Changed = *s, false
		return nil
	})
}

func (k tunnel) verify(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*vxlan.Device)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.tunnel == nil || k.tunnel.Owner != h.Owner:
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	case k.tunnel.Changed || k.tunnel.Device.String() != s.String():
		return fmt.Errorf("%s: %w", s, hold.ErrChanged)
	}
	return nil
}

// release deletes the device, with the routes that lead by it.
func (k tunnel) release(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*vxlan.Device)
	return k.step("tunnel", "delete "+s.String(), func() error {
		if k.tunnel != nil && k.tunnel.Owner == h.Owner && k.tunnel.Device.String() == s.String() {
			k.untunnel()
		}
		return nil
	})
}

// untunnel deletes the tunnel's device. The caller holds w.mu.
func (w *Node) untunnel() {
	w.tunnel = nil
	for way, to := range w.nodeWays {
		if to.tunnel {
			delete(w.nodeWays, way)
		}
	}
}

func (k tunnel) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tunnel == nil {
		return nil, nil
	}
	spec := k.tunnel.Device
	return []hold.Hold{{Owner: k.tunnel.Owner, Spec: &spec}}, nil
}

func (k tunnel) PeerKind() hold.Kind {
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

func (k tunnel) acquirePeer(_ context.Context, h hold.Hold) error {
	p := h.Spec.(*vxlan.Peer)
	return k.step("tunnel", "add "+p.String(), func() error {
		if k.tunnel == nil {
			return fmt.Errorf("%s: there is no tunnel", p)
		}
		if !slices.Contains(k.tunnel.Nodes, p.Node) {
			k.tunnel.Nodes = append(k.tunnel.Nodes, p.Node)
		}
		return nil
	})
}

func (k tunnel) verifyPeer(_ context.Context, h hold.Hold) error {
	p := h.Spec.(*vxlan.Peer)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tunnel == nil || !slices.Contains(k.tunnel.Nodes, p.Node) {
		return fmt.Errorf("%s: %w", p, hold.ErrGone)
	}
	return nil
}

func (k tunnel) releasePeer(_ context.Context, h hold.Hold) error {
	p := h.Spec.(*vxlan.Peer)
	return k.step("tunnel", "delete "+p.String(), func() error {
		if k.tunnel != nil {
			k.tunnel.Nodes = slices.DeleteFunc(k.tunnel.Nodes, func(a netip.Addr) bool { return a == p.Node })
		}
		return nil
	})
}

func (k tunnel) findPeers(context.Context, *hold.Look) ([]hold.Hold, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tunnel == nil {
		return nil, nil
	}
	var all []hold.Hold
	for _, a := range k.tunnel.Nodes {
		all = append(all, hold.Hold{Spec: &vxlan.Peer{Instance: k.instance, Node: a}})
	}
	return all, nil
}
