// Package bridge is the mode that links a pod to a bridge of the node, and gives it addresses of a pool that has a segment, or of an IPAM plugin
// (mode/lent): the pod is a host of the network that the bridge is part of.
//
// bridge.go answers the verbs. plan.go has pure functions of an attachment's plan. survey.go finds attachments that no ledger knows.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	kind "github.com/berth-net/berth/internal/kinds/bridgeport"
	"github.com/berth-net/berth/internal/mode"
)

// Options are what the mode works with.
type Options struct {
	Instance string
	// Ports are the ports of the node's bridges.
	Ports Ports
	// EachNetns calls f with every network namespace that it can find on the node, but for self.
	EachNetns func(self ns.Ref, f func(*ns.Netns))
	// Boottime is CLOCK_BOOTTIME in nanoseconds.
	Boottime func() int64
	// Link reads a link of the node.
	Link  func(name string) (rtnl.Link, error)
	Pools mode.NativePools
	// Claim takes addresses of a pool: the wanted addresses, if there are any.
	Claim func(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error)
	// Unclaim gives back addresses that nobody has used.
	Unclaim func(ipam.Claim)
}

// Ports are the ports of the node's bridges (kinds/bridgeport.Ports).
type Ports interface {
	VerifyPod(context.Context, hold.Hold) error
	Restamp(s *kind.Spec, start int64) error
	Bridge(name string) (rtnl.Bridge, error)
	Survey(each func(self ns.Ref, f func(*ns.Netns))) ([]kind.Seen, error)
}

// Bridge is the mode.
type Bridge struct{ Options }

var _ mode.Mode = (*Bridge)(nil)

// New returns the mode.
func New(o Options) *Bridge { return &Bridge{o} }

// Name is what configurations and records call the mode.
func (*Bridge) Name() string { return netconf.ModeBridge }

// Pooled says that the addresses are of the agent's pools.
func (*Bridge) Pooled() bool { return true }

// NeedsPod reports false: the pod's end goes with the port, which is on the node.
func (*Bridge) NeedsPod(hold.Owner) bool { return false }

// Place is the kind of the hold that takes the interface's place in the pod.
func (*Bridge) Place() string { return kind.KindName }

// Fit refuses a pool without a segment, and what the pool or a port of a bridge cannot have (FitBare).
func (m *Bridge) Fit(r attachment.Record, c *netconf.Conf) error {
	if err := mode.FitPool(m.Name(), r.Pool, true, m.Pools); err != nil {
		return err
	}
	var addrs []netip.Addr
	for _, cidr := range m.Pools.CIDRs(r.Pool) {
		addrs = append(addrs, cidr.Addr())
	}
	if err := mode.FitMTU(c.MTU, "pool "+r.Pool, addrs); err != nil {
		return err
	}
	if err := mode.FitGateways(c.Gateways, r.Pool, m.Pools.Segment(r.Pool)); err != nil {
		return err
	}
	return m.FitBare(c)
}

// FitFor is Fit for what others have given.
func (m *Bridge) FitFor(c *netconf.Conf, g mode.Given) error {
	if err := mode.FitGiven(c, g); err != nil {
		return err
	}
	return m.FitBare(c)
}

// FitBare refuses a link that is no bridge for pods, and what a port of a bridge cannot have, whatever the pod's addresses are.
func (m *Bridge) FitBare(c *netconf.Conf) error {
	if len(c.Ports) > 0 {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: runtimeConfig.portMappings",
			"mode %s has no host ports: no route of the node leads to the pod alone", m.Name())
	}
	if c.Bandwidth != (netconf.Bandwidth{}) {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: runtimeConfig.bandwidth", "mode %s has no limits", m.Name())
	}
	return m.fitBridge(c)
}

// fitBridge refuses a link that is no bridge, and an MTU that the bridge's frames do not have.
func (m *Bridge) fitBridge(c *netconf.Conf) error {
	name := c.Native.Bridge
	if err := mode.FitMaster("bridge", name, m.Link); err != nil {
		return err
	}
	b, err := m.Ports.Bridge(name)
	switch {
	case errors.Is(err, kernel.ErrInvalid):
		return cni.Errorf(cni.CodeConfig, "invalid configuration: bridge", "bridge is %q, and that link of the node is no bridge", name)
	case err != nil:
		return fmt.Errorf("looking at bridge %s: %w", name, err)
	case c.MTU > b.MTU:
		return cni.Errorf(cni.CodeConfig, "invalid configuration: mtu", "mtu is %d; bridge %s has %d", c.MTU, name, b.MTU)
	}
	return nil
}

// Vacant refuses a place in a pod where somebody else has an interface.
func (*Bridge) Vacant(r attachment.Record, pod mode.Pod) error { return mode.Vacant(r, pod) }

// Plan claims an address of each family that the pool has.
func (m *Bridge) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	claim, err := m.Claim(ctx, r.Pool, c.IPs)
	if err != nil {
		return hold.Owner{}, nil, err
	}
	g, err := mode.OfPool(r.Pool, m.Pools.Segment(r.Pool), claim.Addrs())
	if err != nil {
		m.Unclaim(claim)
		return hold.Owner{}, nil, err
	}
	return m.plan(id, r, c, g), func() { m.Unclaim(claim) }, nil
}

// PlanFor is Plan for an attachment whose addresses others have given.
func (m *Bridge) PlanFor(_ context.Context, id hold.ID, r attachment.Record, c *netconf.Conf, g mode.Given) (hold.Owner, func(), error) {
	return m.plan(id, r, c, g), func() {}, nil
}

// PlanBare is Plan for a port whose pod's end has no addresses.
func (m *Bridge) PlanBare(id hold.ID, r attachment.Record, c *netconf.Conf) hold.Owner {
	s := spec(id, m.Instance, r, c, mode.Given{})
	s.Bare = true
	return mode.SegmentOwner(id, r, s, nil)
}

// PlanLate returns what an owner of PlanBare gains with its addresses.
func (m *Bridge) PlanLate(bare hold.Owner, r attachment.Record, c *netconf.Conf, g mode.Given) (hold.Owner, error) {
	_, s, err := specOf(bare)
	if err != nil {
		return hold.Owner{}, err
	}
	late := &kind.IPs{Spec: *s}
	late.Bare, late.Addresses, late.Routes = false, g.Addresses, g.Routes
	o := mode.SegmentOwner(bare.ID, r, late, g.Addrs())
	mode.Lead(&o, r, c)
	return o, nil
}

// Late is the kind of the addresses of a pod's end that was made without them.
func (*Bridge) Late() string { return kind.IPsName }

// Taken has nothing to do: nobody reaches the pod by the node's routes to it alone.
func (*Bridge) Taken(hold.Owner) {}

// specOf returns the port that an attachment holds, with the addresses that came later, and the hold that has these.
func specOf(o hold.Owner) (hold.Hold, *kind.Spec, error) {
	if h, ok := o.Find(kind.IPsName); ok {
		if s, ok := h.Spec.(*kind.IPs); ok {
			return h, &s.Spec, nil
		}
	}
	h, ok := o.Find(kind.KindName)
	if !ok {
		return h, nil, fmt.Errorf("attachment %s holds no port of a bridge", o.ID)
	}
	s, ok := h.Spec.(*kind.Spec)
	if !ok {
		return h, nil, fmt.Errorf("attachment %s: another version of berthd wrote the record of its bridge's port", o.ID)
	}
	return h, s, nil
}

// Interface describes the attachment's interface, as its plan has it.
func (*Bridge) Interface(o hold.Owner) (attachment.Interface, error) {
	_, s, err := specOf(o)
	if err != nil {
		return attachment.Interface{}, err
	}
	face := attachment.Interface{Host: s.Name, Alias: s.Alias, MAC: s.MAC, MTU: s.MTU}
	for _, a := range s.Addresses {
		face.Addresses = append(face.Addresses, a.Addr())
	}
	return face, nil
}

// Again writes into the port's alias when the attachment's last ADD began.
func (m *Bridge) Again(o hold.Owner, started int64) error {
	_, s, err := specOf(o)
	if err != nil {
		return err
	}
	return m.Ports.Restamp(s, started)
}

// Differs reports false: it is asked about host veths (internal/mend), and a port is none. The sweep compares ports.
func (*Bridge) Differs(hold.Owner, rtnl.Link) bool { return false }

// VerifyPod compares the inside of the pod with the plan.
func (m *Bridge) VerifyPod(ctx context.Context, o hold.Owner) error {
	h, _, err := specOf(o)
	if err != nil {
		return err
	}
	return m.Ports.VerifyPod(ctx, h)
}
