// Package lent has an IPAM plugin give the addresses of a mode's attachments (CNI 1.1, section 5), if their configuration names one.
//
// Plan returns an owner that holds what the plugin gives, and no more. Once the engine has taken it, the addresses are known and
// in the ledger, and Complete adds what the mode makes for them. The attachment's release goes the other way: the plugin takes the
// addresses back last, when nothing of the pod uses them.
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
	mode.Ceder
	// FitFor is Fit for addresses; whose says where they come from.
	FitFor(c *netconf.Conf, whose string, addrs []netip.Addr) error
	// PlanFor is Plan for addresses.
	PlanFor(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf, addrs []netip.Addr) (o hold.Owner, undo func(), err error)
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

// Fit refuses what the base refuses. What an IPAM plugin gives is not known yet: Complete looks.
func (m *Mode) Fit(r attachment.Record, c *netconf.Conf) error {
	if c.IPAM == nil {
		return m.Base.Fit(r, c)
	}
	return nil
}

// Plan returns the owner that the attachment will be or, with an IPAM plugin, what is known of the owner.
func (m *Mode) Plan(ctx context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	if c.IPAM == nil {
		return m.Base.Plan(ctx, id, r, c)
	}
	s := &delegate.IPAM{Spec: m.asks(c)}
	s.ID, s.Container, s.Netns, s.Ifname = id, r.ContainerID, r.Netns, r.Ifname
	return hold.Owner{ID: id, Meta: r.Encode(), Holds: []hold.Hold{{Owner: id, Spec: s}}}, func() {}, nil
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
	h, _ := o.Find(delegate.IPAMKind)
	s, _ := h.Spec.(*delegate.IPAM)
	return s
}

// Lender is the kind of what IPAM plugins give.
func (m *Mode) Lender() string { return delegate.IPAMKind }

// Incomplete reports whether an attachment has its addresses of an IPAM plugin alone.
func (m *Mode) Incomplete(o hold.Owner) bool {
	isPlace := func(h hold.Hold) bool { return h.Spec.Kind() == m.Place() }
	return lender(o) != nil && !slices.ContainsFunc(o.Settled(), isPlace)
}

// Complete returns the change that gives an attachment what the base makes for the addresses of its IPAM plugin. It goes by the
// configuration that the plugin got.
func (m *Mode) Complete(ctx context.Context, o hold.Owner, r attachment.Record) (change func(*hold.Owner) error, undo func(), err error) {
	s := lender(o)
	c, bad := netconf.Parse([]byte(s.Plugins[0]))
	if bad != nil {
		return nil, nil, bad
	}
	addrs, err := m.usable(s)
	if err == nil {
		err = m.FitFor(c, whose(s), addrs)
	}
	if err != nil {
		return nil, nil, err
	}
	whole, undo, err := m.PlanFor(ctx, o.ID, r, c, addrs)
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

func whose(s *delegate.IPAM) string { return "IPAM plugin " + s.Type }

// usable returns the addresses that a plugin has given, if a pod can have them: at most one of each family, none of them a pool's, and none
// that somebody else on the node has.
func (m *Mode) usable(s *delegate.IPAM) ([]netip.Addr, error) {
	const refused = "unusable addresses of an IPAM plugin"
	addrs, err := s.Addresses()
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, refused, "%s gives no address", whose(s))
	}
	for i, a := range addrs {
		if _, _, ok := netconf.ParseIP(a.String()); !ok || a.IsLinkLocalUnicast() && a.Is6() {
			return nil, cni.Errorf(cni.CodeConfig, refused, "%s gives %s; expected an address that a pod can have", whose(s), a)
		}
		if slices.ContainsFunc(addrs[:i], func(b netip.Addr) bool { return b.Is4() == a.Is4() }) {
			return nil, cni.Errorf(cni.CodeConfig, refused, "%s gives %v; expected at most one of each family", whose(s), addrs)
		}
		if pool := m.PoolOf(a); pool != "" {
			return nil, cni.Errorf(cni.CodeTaken, "address not available", "%s gives %s, which is an address of pool %s: the two must not overlap", whose(s), a, pool)
		}
	}
	if others := m.Reached(addrs); len(others) > 0 {
		return nil, cni.Errorf(cni.CodeTaken, "address not available", "%s gives %s, which somebody else on this node has", whose(s), others[0])
	}
	return addrs, nil
}

// In returns a copy of an attachment's owner whose interface is in netns, under the name ifname.
func (m *Mode) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = m.Base.In(netns, ifname, o)
	for i, h := range o.Holds {
		if s, ok := h.Spec.(*delegate.IPAM); ok {
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		}
	}
	return o
}
