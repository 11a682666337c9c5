// Package macvlan is the mode that gives a pod a macvlan of a link of the node, and addresses of a pool that has a segment: the pod is a host of
// the network that the link leads to.
//
// macvlan.go answers the verbs. plan.go has pure functions of an attachment's plan. survey.go finds attachments that no ledger knows.
package macvlan

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	kind "github.com/berth-net/berth/internal/kinds/macvlan"
	"github.com/berth-net/berth/internal/mode"
)

// Options are what the mode works with.
type Options struct {
	Instance string
	// Verify compares all of a macvlan with its plan (kinds/macvlan.Macvlans.VerifyPod).
	Verify func(context.Context, hold.Hold) error
	// Seen looks for the instance's macvlans in the pods (kinds/macvlan.Macvlans.Survey).
	Seen func() []kind.Seen
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

// Macvlan is the mode.
type Macvlan struct{ Options }

var _ mode.Mode = (*Macvlan)(nil)

// New returns the mode.
func New(o Options) *Macvlan { return &Macvlan{o} }

// Name is what configurations and records call the mode.
func (*Macvlan) Name() string { return netconf.ModeMacvlan }

// Pooled says that the addresses are of the agent's pools.
func (*Macvlan) Pooled() bool { return true }

// NeedsPod reports true: the macvlan is in the pod alone. If a program kept the pod's network namespace without its path, the macvlan would be
// left in it, with an address that another pod gets.
func (*Macvlan) NeedsPod(hold.Owner) bool { return true }

// Place is the kind of the hold that takes the interface's place in the pod.
func (*Macvlan) Place() string { return kind.KindName }

// Fit refuses a pool without a segment, and what the pool or a macvlan cannot have (FitBare).
func (m *Macvlan) Fit(r attachment.Record, c *netconf.Conf) error {
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

// FitBare refuses a link of the node that no pod may share, and what a macvlan cannot have, whatever its addresses are.
func (m *Macvlan) FitBare(c *netconf.Conf) error {
	if len(c.Ports) > 0 {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: runtimeConfig.portMappings",
			"mode %s has no host ports: no route of the node leads to a macvlan", m.Name())
	}
	if c.Bandwidth != (netconf.Bandwidth{}) {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: runtimeConfig.bandwidth",
			"mode %s has no limits: the node has no end of a macvlan that it could limit, and a pod could remove a limit at its own", m.Name())
	}
	if c.MAC != nil && c.Native.MacvlanMode == passthru {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: runtimeConfig.mac",
			"a macvlan in mode %s has the MAC of its master %s", passthru, c.Native.Master)
	}
	return mode.FitMaster("master", c.Native.Master, m.Link)
}

// Vacant refuses a place in a pod where somebody else has an interface.
func (*Macvlan) Vacant(r attachment.Record, pod mode.Pod) error { return mode.Vacant(r, pod) }

// Plan claims an address of each family that the pool has.
func (m *Macvlan) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
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

// FitFor is Fit for what others have given.
func (m *Macvlan) FitFor(c *netconf.Conf, g mode.Given) error {
	if err := mode.FitGiven(c, g); err != nil {
		return err
	}
	return m.FitBare(c)
}

// PlanFor is Plan for an attachment whose addresses others have given.
func (m *Macvlan) PlanFor(_ context.Context, id hold.ID, r attachment.Record, c *netconf.Conf, g mode.Given) (hold.Owner, func(), error) {
	return m.plan(id, r, c, g), func() {}, nil
}

// plan returns the owner that an attachment with these addresses and routes will be.
func (m *Macvlan) plan(id hold.ID, r attachment.Record, c *netconf.Conf, g mode.Given) hold.Owner {
	o := mode.SegmentOwner(id, r, spec(id, m.Instance, r, c, g), g.Addrs())
	mode.Lead(&o, r, c)
	return o
}

// Taken has nothing to do: nobody reaches a macvlan by the node's routes.
func (*Macvlan) Taken(hold.Owner) {}

// PlanBare is Plan for a macvlan without addresses.
func (m *Macvlan) PlanBare(id hold.ID, r attachment.Record, c *netconf.Conf) hold.Owner {
	s := spec(id, m.Instance, r, c, mode.Given{})
	s.Bare = true
	return mode.SegmentOwner(id, r, s, nil)
}

// PlanLate returns what an owner of PlanBare gains with its addresses.
func (m *Macvlan) PlanLate(bare hold.Owner, r attachment.Record, c *netconf.Conf, g mode.Given) (hold.Owner, error) {
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

// Late is the kind of the addresses of a macvlan that was made without them.
func (*Macvlan) Late() string { return kind.IPsName }

// specOf returns the macvlan that an attachment holds, with the addresses that came later, and the hold that has these.
func specOf(o hold.Owner) (hold.Hold, *kind.Spec, error) {
	if h, ok := o.Find(kind.IPsName); ok {
		if s, ok := h.Spec.(*kind.IPs); ok {
			return h, &s.Spec, nil
		}
	}
	h, ok := o.Find(kind.KindName)
	if !ok {
		return h, nil, fmt.Errorf("attachment %s holds no macvlan", o.ID)
	}
	s, ok := h.Spec.(*kind.Spec)
	if !ok {
		return h, nil, fmt.Errorf("attachment %s: another version of berthd wrote the record of its macvlan", o.ID)
	}
	return h, s, nil
}

// Interface describes the attachment's interface, as its plan has it.
func (*Macvlan) Interface(o hold.Owner) (attachment.Interface, error) {
	_, s, err := specOf(o)
	if err != nil {
		return attachment.Interface{}, err
	}
	face := attachment.Interface{MAC: s.MAC, MTU: s.MTU}
	for _, a := range s.Addresses {
		face.Addresses = append(face.Addresses, a.Addr())
	}
	return face, nil
}

// Again has nothing to do: a plugin that no agent answers does not look into pods.
func (*Macvlan) Again(hold.Owner, int64) error { return nil }

// Differs reports false: no link of the node is the attachment's.
func (*Macvlan) Differs(hold.Owner, rtnl.Link) bool { return false }

// VerifyPod compares the inside of the pod with the plan.
func (m *Macvlan) VerifyPod(ctx context.Context, o hold.Owner) error {
	h, _, err := specOf(o)
	if err != nil {
		return err
	}
	return m.Verify(ctx, h)
}
