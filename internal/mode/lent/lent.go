// Package lent has an IPAM plugin give the addresses of a mode's attachments (CNI 1.1, section 5), if their configuration names one.
//
// Plan returns an owner that holds what the plugin gives, and no more. Once the engine has taken it, the addresses are known and
// in the ledger, and Complete adds what the mode makes for them. The attachment's release goes the other way: the plugin takes the
// addresses back last, when nothing of the pod uses them.
//
// An IPAM plugin that asks for addresses by the pod's interface, such as dhcp, gets one without addresses (Native.PlanBare): Plan's owner then holds
// that interface, too. Its release takes the addresses off the interface, then has the plugin give them back, and then deletes the
// interface (delegate.Lease).
package lent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/mode"
)

// Base is a mode that can make attachments for addresses which others have chosen.
type Base interface {
	mode.Mode
	// FitFor is Fit for what others have given.
	FitFor(c *netconf.Conf, g mode.Given) error
	// PlanFor is Plan for what others have given.
	PlanFor(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf, g mode.Given) (o hold.Owner, undo func(), err error)
}

// Native is a base whose pods are hosts of the network of their addresses: the plugin's gateways and routes count.
type Native interface {
	Base
	// FitBare refuses what an interface cannot have whatever its addresses are, before the plugin is executed.
	FitBare(c *netconf.Conf) error
	// PlanBare is Plan for an interface without addresses.
	PlanBare(id hold.ID, r attachment.Record, c *netconf.Conf) hold.Owner
	// PlanLate returns what an owner of PlanBare gains with its addresses.
	PlanLate(bare hold.Owner, r attachment.Record, c *netconf.Conf, g mode.Given) (hold.Owner, error)
	// Late is the name of the kind of the addresses that such an owner gains.
	Late() string
}

// Options are what the mode works with.
type Options struct {
	// Run names this run of the agent (delegate.Options.Run).
	Run string
	// Check has the plugin compare what it has given with what it knows (delegate.Delegates.Check).
	Check func(context.Context, *delegate.Spec) error
	// Status has the plugin say whether it is ready (delegate.Delegates.Status).
	Status func(context.Context, *delegate.Spec) error
	// PoolOf returns the name of the pool that has an address; "" if none has it.
	PoolOf func(netip.Addr) string
	// Reached returns those of some addresses that somebody on the node has.
	Reached func([]netip.Addr) []netip.Addr
}

// Mode is a mode whose addresses an IPAM plugin may give. It is its base in all else, and for all other attachments.
type Mode struct {
	Base
	Options
}

var (
	_ mode.Completer = (*Mode)(nil)
	_ mode.Executor  = (*Mode)(nil)
)

// New returns the mode.
func New(b Base, o Options) *Mode { return &Mode{b, o} }

// Fit refuses what the base refuses. Of an IPAM plugin's addresses nothing is known yet: Complete looks.
func (m *Mode) Fit(r attachment.Record, c *netconf.Conf) error {
	if c.IPAM == nil {
		return m.Base.Fit(r, c)
	}
	if n, ok := m.Base.(Native); ok {
		return n.FitBare(c)
	}
	if delegate.AsksByInterface(c.IPAM.Type) {
		return cni.Errorf(cni.CodeConfig, "invalid configuration: ipam.type", "ipam.type is %q, which needs a pod's interface on the network; mode %s gives it none", c.IPAM.Type, m.Name())
	}
	return nil
}

// Plan returns the owner that the attachment will be or, with an IPAM plugin, what is known of the owner.
func (m *Mode) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	if c.IPAM == nil {
		return m.Base.Plan(ctx, id, r, c)
	}
	s := delegate.IPAM{Spec: m.asks(c)}
	s.ID, s.Container, s.Netns, s.Ifname = id, r.ContainerID, r.Netns, r.Ifname
	if n, ok := m.Base.(Native); ok && delegate.AsksByInterface(s.Type) {
		o := n.PlanBare(id, r, c)
		o.Ordered, o.Holds = true, append(o.Holds, hold.Hold{Owner: id, Spec: &delegate.Lease{IPAM: s}})
		return o, func() {}, nil
	}
	return hold.Owner{ID: id, Meta: r.Encode(), Holds: []hold.Hold{{Owner: id, Spec: &s}}}, func() {}, nil
}

// asks returns what a configuration says of its IPAM plugin.
func (m *Mode) asks(c *netconf.Conf) delegate.Spec {
	return delegate.Spec{
		Network: c.Name, Version: c.Version, Type: c.IPAM.Type, Plugins: []string{string(c.IPAM.Config)},
		Args: c.IPAM.Args, Folders: c.IPAM.Folders, DisableGC: c.IPAM.DisableGC, Run: m.Run,
	}
}

// Ready has the IPAM plugin say whether it is ready (CNI 1.1, section 4, STATUS).
func (m *Mode) Ready(ctx context.Context, c *netconf.Conf) error {
	if c.IPAM == nil {
		return nil
	}
	s := m.asks(c)
	return m.Status(ctx, &s)
}

// lender returns what an IPAM plugin has given to an attachment; nil: no plugin gives it anything.
func lender(o hold.Owner) *delegate.IPAM {
	for _, h := range o.Holds {
		switch s := h.Spec.(type) {
		case *delegate.IPAM:
			return s
		case *delegate.Lease:
			return &s.IPAM
		}
	}
	return nil
}

// late returns the base that gives an attachment's interface its addresses later; nil: the interface comes with them.
func (m *Mode) late(o hold.Owner) Native {
	n, ok := m.Base.(Native)
	if _, leased := o.Find(delegate.LeaseKind); !ok || !leased {
		return nil
	}
	return n
}

// NeedsPod reports true if an IPAM plugin gives back by the pod's interface what it has given; else it is the base's.
func (m *Mode) NeedsPod(o hold.Owner) bool { return m.late(o) != nil || m.Base.NeedsPod(o) }

// Incomplete reports whether an attachment lacks what the base makes for the addresses of its IPAM plugin.
func (m *Mode) Incomplete(o hold.Owner) bool {
	last := m.Place()
	if n := m.late(o); n != nil {
		last = n.Late()
	}
	return lender(o) != nil && !slices.ContainsFunc(o.Settled(), func(h hold.Hold) bool { return h.Spec.Kind() == last })
}

// Complete returns the change that gives an attachment what the base makes for the addresses of its IPAM plugin. It goes by the
// configuration that the plugin got.
func (m *Mode) Complete(ctx context.Context, o hold.Owner, r attachment.Record) (change func(*hold.Owner) error, undo func(), err error) {
	s := lender(o)
	c, bad := netconf.Parse([]byte(s.Plugins[0]))
	if bad != nil {
		return nil, nil, bad
	}
	g, err := m.given(s)
	if err == nil {
		err = m.FitFor(c, g)
	}
	if err != nil {
		return nil, nil, err
	}
	var whole hold.Owner
	if n := m.late(o); n != nil {
		undo = func() {}
		whole, err = n.PlanLate(o, r, c, g)
	} else {
		whole, undo, err = m.PlanFor(ctx, o.ID, r, c, g)
	}
	if err != nil {
		return nil, nil, err
	}
	return func(o *hold.Owner) error {
		for _, n := range whole.Names {
			if !slices.Contains(o.Names, n) {
				o.Names = append(o.Names, n)
			}
		}
		o.Holds = append(o.Holds, whole.Holds...)
		return nil
	}, undo, nil
}

// In returns a copy of an attachment's owner whose interface is in netns, under the name ifname.
func (m *Mode) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = m.Base.In(netns, ifname, o)
	for i, h := range o.Holds {
		switch s := h.Spec.(type) {
		case *delegate.IPAM:
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		case *delegate.Lease:
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		}
	}
	return o
}
