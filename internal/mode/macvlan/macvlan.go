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
	Pools Pools
	// Claim takes addresses of a pool: the wanted addresses, if there are any.
	Claim func(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error)
	// Unclaim gives back addresses that nobody has used.
	Unclaim func(ipam.Claim)
}

// Pools are the agent's pools.
type Pools interface {
	mode.Segments
	// CIDRs returns the prefixes from which a pool gives addresses.
	CIDRs(pool string) []netip.Prefix
	// PoolOf returns the name of the pool that has an address; "" if none has it.
	PoolOf(netip.Addr) string
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
func (*Macvlan) NeedsPod() bool { return true }

// Place is the kind of the hold that takes the interface's place in the pod.
func (*Macvlan) Place() string { return kind.KindName }

// Fit refuses a pool without a segment, a link of the node that no pod may share, and what a macvlan cannot have.
func (m *Macvlan) Fit(r attachment.Record, c *netconf.Conf) error {
	if err := mode.FitPool(m.Name(), r.Pool, true, m.Pools); err != nil {
		return err
	}
	if c.IPAM != nil {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: ipam", "ipam is of type %q; mode %s has addresses of pools that have a segment", c.IPAM.Type, m.Name())
	}
	var addrs []netip.Addr
	for _, cidr := range m.Pools.CIDRs(r.Pool) {
		addrs = append(addrs, cidr.Addr())
	}
	if err := mode.FitMTU(c.MTU, "pool "+r.Pool, addrs); err != nil {
		return err
	}
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
	if err := mode.FitGateways(c.Gateways, r.Pool, m.Pools.Segment(r.Pool)); err != nil {
		return err
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
	o, err := plan(id, m.Instance, r, c, claim.Addrs(), m.Pools.Segment(r.Pool))
	if err != nil {
		m.Unclaim(claim)
		return hold.Owner{}, nil, err
	}
	mode.Lead(&o, r, c)
	return o, func() { m.Unclaim(claim) }, nil
}

// Taken has nothing to do: nobody reaches a macvlan by the node's routes.
func (*Macvlan) Taken(hold.Owner) {}

// specOf returns the macvlan that an attachment holds.
func specOf(o hold.Owner) (hold.Hold, *kind.Spec, error) {
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
