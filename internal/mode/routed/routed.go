// Package routed is the mode that gives a pod a veth pair, addresses of a pool, and
// routes on the node that lead to them.
//
// routed.go answers the verbs. plan.go, owner.go and result.go are pure functions of an
// attachment's plan. adopt.go and survey.go find attachments that no ledger knows.
package routed

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/stamp"
)

// Options are what the mode works with.
type Options struct {
	Instance string
	Groups   stamp.Groups
	Links    Links
	Conn     Conn
	// OwnLinks lists the links of this agent's instance, under the names that ADD gave them.
	OwnLinks func() ([]rtnl.Link, error)
	// Others reports whether another agent of an instance lives in this network namespace.
	Others func(instance string) bool
	Pools  Pools
	// MTU returns the MTU, in bytes, of pods whose configuration names none.
	MTU func() int
	// Claim takes addresses of a pool: the wanted addresses, if there are any.
	Claim func(ctx context.Context, pool string, wanted []netip.Addr) (ipam.Claim, error)
	// Unclaim gives back addresses that nobody has used.
	Unclaim func(ipam.Claim)
	// Unbar has the kernel forget connections that others have begun with addresses since Claim.
	Unbar func([]netip.Addr)
	// ClaimPorts takes ports of the node for an owner. undo gives them back.
	ClaimPorts func(context.Context, hold.ID, []nft.Mapping) (undo func(), err error)
	// Lacks returns the parts of the agent's table that the kernel lacks.
	Lacks func() nft.Parts
	// Mapped returns the host ports in the agent's table, by their owners.
	Mapped func() (map[hold.ID]*hostports.Spec, error)
	// Ends looks for the other ends of links of the node, as link.FindEnds does.
	Ends func(self ns.Ref, wanted []link.WantedEnd) map[string]link.PodEnd
	// Boottime is CLOCK_BOOTTIME in nanoseconds.
	Boottime func() int64
	// Netns is the node's own network namespace.
	Netns ns.Ref
	// Warn writes a warning to the log.
	Warn func(msg string, args ...any)
}

// Links is the kind of the pods' links (kinds/link).
type Links interface {
	VerifyPodCeded(context.Context, hold.Hold, rtnl.Families) error
	Restamp(s *link.Spec, start int64) error
}

// Conn lists what is on the node.
type Conn interface {
	Link(name string) (rtnl.Link, error)
	Routes(rtnl.RouteFilter) ([]rtnl.Route, error)
	Neighbours() ([]rtnl.Neighbour, error)
	Shaped() ([]rtnl.Qdisc, error)
	Policed(indices ...int) (map[int]rtnl.Rate, error)
}

// Pools are the agent's pools.
type Pools interface {
	mode.Segments
	// CIDRs returns the prefixes from which a pool gives addresses.
	CIDRs(pool string) []netip.Prefix
	// PoolOf returns the name of the pool that has an address; "" if none has it.
	PoolOf(netip.Addr) string
}

// Routed is the mode.
type Routed struct {
	Options
}

var _ mode.Finder = (*Routed)(nil)

// New returns the mode.
func New(o Options) *Routed { return &Routed{o} }

// Name is what configurations and records call the mode.
func (*Routed) Name() string { return netconf.ModeRouted }

// Pooled says that the addresses are of the agent's pools.
func (*Routed) Pooled() bool { return true }

// NeedsPod reports false: the pod's end goes with the link, wherever it is.
func (*Routed) NeedsPod(hold.Owner) bool { return false }

// Place is the kind of the hold that takes the interface's place in the pod.
func (*Routed) Place() string { return link.KindName }

func (m *Routed) mtu(c *netconf.Conf) int {
	if c.MTU > 0 {
		return c.MTU
	}
	return m.MTU()
}

// Fit refuses a pool that has a segment, and what the pool cannot have (fitAddrs).
func (m *Routed) Fit(r attachment.Record, c *netconf.Conf) error {
	if err := mode.FitPool(m.Name(), r.Pool, false, m.Pools); err != nil {
		return err
	}
	cidrs := m.Pools.CIDRs(r.Pool)
	addrs := make([]netip.Addr, len(cidrs))
	for i, c := range cidrs {
		addrs[i] = c.Addr()
	}
	return m.fitAddrs(c, "pool "+r.Pool, addrs)
}

// FitFor is Fit for addresses that others have given. A pod's link leads to the node alone, which has the ways to all that their routes may name: so
// neither these nor the prefixes' lengths count.
func (m *Routed) FitFor(c *netconf.Conf, g mode.Given) error {
	return m.fitAddrs(c, g.Whose, g.Addrs())
}

// fitAddrs refuses an MTU that is too small for a family of addresses, a burst that is too small for
// the MTU, a default route by another gateway than the link's, and a host port of a family that the addresses lack, or on a kernel that
// cannot map any. whose says where the addresses come from.
func (m *Routed) fitAddrs(c *netconf.Conf, whose string, addrs []netip.Addr) error {
	if err := mode.FitMTU(m.mtu(c), whose, addrs); err != nil {
		return err
	}
	if err := mode.FitBandwidth(c.Bandwidth, cmp.Or(m.mtu(c), link.DefaultMTU)); err != nil {
		return err
	}
	if len(c.Ports) > 0 && m.Lacks()&nft.HostPorts != 0 {
		return cni.Errorf(cni.CodeConfig, "host ports are not supported",
			"this kernel lacks something of what they need (nft_nat, nft_masq, nft_fib, nft_ct); berth status says so too")
	}
	for _, g := range c.Gateways {
		own, same := link.Gateway4, func(a netip.Addr) bool { return a.Is4() == g.Is4() }
		if g.Is6() {
			own = link.Gateway6
		}
		if !slices.ContainsFunc(addrs, same) {
			return cni.Errorf(cni.CodeConfig, "invalid request for a default route", "default-route is %s; %s has no addresses of its family", g, whose)
		}
		if g != own {
			return cni.Errorf(cni.CodeConfig, "invalid request for a default route", "default-route is %s; expected %s, the only gateway of a network of Berth's own", g, own)
		}
	}
	for _, p := range c.Ports {
		same := func(a netip.Addr) bool { return a.Is4() == p.HostIP.Is4() }
		if p.HostIP.IsValid() && !slices.ContainsFunc(addrs, same) {
			return cni.Errorf(cni.CodeConfig, "invalid configuration: runtimeConfig.portMappings",
				"hostIP is %s; %s has no addresses of its family", p.HostIP, whose)
		}
	}
	return nil
}

// Vacant refuses a place in a pod where somebody else has an interface. The link's kind
// would refuse it, too, but by then addresses are claimed, and would have to rest.
func (*Routed) Vacant(r attachment.Record, pod mode.Pod) error { return mode.Vacant(r, pod) }

// Plan claims an address of each family that the pool has, and the host ports.
func (m *Routed) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	claim, err := m.Claim(ctx, r.Pool, c.IPs)
	if err != nil {
		return hold.Owner{}, nil, err
	}
	o, undo, err := m.planAddrs(ctx, id, r, c, claim.Addrs())
	if err != nil {
		m.Unclaim(claim)
		return hold.Owner{}, nil, err
	}
	return o, func() { undo(); m.Unclaim(claim) }, nil
}

// PlanFor is Plan for an attachment whose addresses others have given.
func (m *Routed) PlanFor(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf, g mode.Given) (hold.Owner, func(), error) {
	return m.planAddrs(ctx, id, r, c, g.Addrs())
}

// planAddrs is Plan for an attachment whose addresses are chosen: it claims the host ports alone.
func (m *Routed) planAddrs(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf, addrs []netip.Addr) (o hold.Owner, undo func(), err error) {
	w := wish{MTU: m.mtu(c), MAC: c.MAC, Ports: mode.Mappings(c.Ports, addrs), Bandwidth: c.Bandwidth}
	undo = func() {}
	if len(w.Ports) > 0 {
		if undo, err = m.ClaimPorts(ctx, id, w.Ports); err != nil {
			return hold.Owner{}, nil, err
		}
	}
	o = plan(id, m.Instance, r, w, addrs)
	mode.Lead(&o, r, c)
	return o, undo, nil
}

// Taken has the kernel forget the connections that others have begun with the attachment's addresses since Plan.
func (m *Routed) Taken(o hold.Owner) {
	if _, s, err := linkOf(o); err == nil {
		m.Unbar(s.Addresses)
	}
}

// linkOf returns the link that an attachment holds.
func linkOf(o hold.Owner) (hold.Hold, *link.Spec, error) {
	h, ok := o.Find(link.KindName)
	if !ok {
		return h, nil, fmt.Errorf("attachment %s holds no link", o.ID)
	}
	spec, ok := h.Spec.(*link.Spec)
	if !ok {
		return h, nil, fmt.Errorf("attachment %s: another version of berthd wrote the record of its link", o.ID)
	}
	return h, spec, nil
}

// Interface describes the attachment's interface, as its plan has it.
func (*Routed) Interface(o hold.Owner) (attachment.Interface, error) {
	_, s, err := linkOf(o)
	if err != nil {
		return attachment.Interface{}, err
	}
	face := attachment.Interface{Host: s.Name, Alias: s.Alias, MAC: s.MAC, MTU: cmp.Or(s.MTU, link.DefaultMTU), Addresses: s.Addresses, Ingress: s.Ingress, Egress: s.Egress}
	if h, ok := o.Find(hostports.KindName); ok {
		if ports, ok := h.Spec.(*hostports.Spec); ok {
			face.Ports = ports.Mappings
		}
	}
	return face, nil
}

// Again writes `started` onto the host's end of the attachment's link. `started` is when the repeated ADD
// began that the attachment answers.
func (m *Routed) Again(o hold.Owner, started int64) error {
	_, s, err := linkOf(o)
	if err != nil {
		return err
	}
	return m.Links.Restamp(s, started)
}

// VerifyPod compares the inside of the pod with the plan.
func (m *Routed) VerifyPod(ctx context.Context, o hold.Owner) error {
	return m.VerifyPodCeded(ctx, o, rtnl.Families{})
}

// VerifyPodCeded is VerifyPod for a pod whose default routes of some families lead through another network.
func (m *Routed) VerifyPodCeded(ctx context.Context, o hold.Owner, ceded rtnl.Families) error {
	h, _, err := linkOf(o)
	if err != nil {
		return nil // the plan of a pod whose link is gone has nothing to compare with
	}
	return m.Links.VerifyPodCeded(ctx, h, ceded)
}

// Differs reports whether a link of the node is not as its owner's plan has it.
func (m *Routed) Differs(o hold.Owner, l rtnl.Link) bool {
	_, s, err := linkOf(o)
	if err != nil {
		return false
	}
	mtu := cmp.Or(s.MTU, link.DefaultMTU)
	return l.Name != s.Name || !stamp.Alike(l.Alias, s.Alias) || l.MAC != s.HostMAC || l.MTU != mtu || l.Master != 0 || l.Group != m.Groups.Live()
}
