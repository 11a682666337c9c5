// Package delegated is the mode of a network that other CNI plugins make for a pod (kinds/delegate). The addresses are the plugins': Berth
// knows them from the plugins' result only.
package delegated

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/deviceinfo"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/nad"
)

// Options are what the mode works with.
type Options struct {
	// Run names this run of the agent (delegate.Options.Run).
	Run string
	// Check has the plugins compare a network with what they have made (delegate.Delegates.Check).
	Check func(context.Context, *delegate.Spec) error
	// GC has the plugins of networks give back what is none of the kept attachments' (delegate.Delegates.GC).
	GC func(ctx context.Context, kept func() []*delegate.Spec) (words []string, err error)
	// Status has the plugins of a list say whether they are ready (delegate.Delegates.Status).
	Status func(context.Context, *delegate.Spec) error
	// InfoFile is the path of an attachment's device-info file (devices.Files.Path).
	InfoFile func(hold.ID) string
}

// Delegated is the mode.
type Delegated struct{ Options }

var (
	_ mode.Executor  = (*Delegated)(nil)
	_ mode.Collector = (*Delegated)(nil)
)

// New returns the mode.
func New(o Options) *Delegated { return &Delegated{o} }

// Name is what records call the mode.
func (*Delegated) Name() string { return netconf.ModeDelegated }

// Pooled says that the addresses are of no pool.
func (*Delegated) Pooled() bool { return false }

// NeedsPod reports true: DEL of some plugins takes things out of the pod, such as a device of the node.
func (*Delegated) NeedsPod(hold.Owner) bool { return true }

// Place is the kind of the hold that takes the interface's place in the pod.
func (*Delegated) Place() string { return delegate.KindName }

// Fit refuses a configuration that no plugins come with.
func (*Delegated) Fit(_ attachment.Record, c *netconf.Conf) error {
	if c.List == nil || len(c.List.Plugins) == 0 {
		return cni.Errorf(cni.CodeInternal, "no plugins", "network %s is to be made by other plugins, and names none", c.Name)
	}
	return nil
}

// Vacant refuses a place in a pod that an interface has.
func (*Delegated) Vacant(r attachment.Record, pod mode.Pod) error { return mode.Vacant(r, pod) }

// Plan returns the owner that the attachment will be. If the network has a device, the device-info file comes ahead of the plugins.
func (m *Delegated) Plan(_ context.Context, id hold.ID, r attachment.Record, c *netconf.Conf) (hold.Owner, func(), error) {
	o := hold.Owner{ID: id, Meta: r.Encode()}
	if c.List.Device != "" {
		plugins, err := nad.Offer(c.List.Plugins, nad.CapabilityInfoFile, m.InfoFile(id))
		if err != nil {
			return hold.Owner{}, nil, fmt.Errorf("network %s: %w", c.Name, err)
		}
		list, conf := *c.List, *c
		list.Plugins, conf.List = plugins, &list
		c = &conf
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &deviceinfo.Spec{ID: id, Resource: list.Resource, Device: list.Device}})
	}
	s := m.list(c)
	s.ID, s.Container, s.Netns, s.Ifname = id, r.ContainerID, r.Netns, r.Ifname
	o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: s})
	mode.Lead(&o, r, c)
	return o, func() {}, nil
}

// list returns what a configuration says of its plugins.
func (m *Delegated) list(c *netconf.Conf) *delegate.Spec {
	s := &delegate.Spec{
		Network: c.Name, Version: c.Version, Args: c.List.Args, Folders: c.List.Folders,
		DisableCheck: c.List.DisableCheck, DisableGC: c.List.DisableGC, Run: m.Run,
	}
	for _, p := range c.List.Plugins {
		s.Plugins = append(s.Plugins, string(p))
	}
	return s
}

// Taken has nothing to do.
func (*Delegated) Taken(hold.Owner) {}

// specOf returns what the plugins of an attachment get, and what they have answered.
func specOf(o hold.Owner) (*delegate.Spec, error) {
	h, ok := o.Find(delegate.KindName)
	if !ok {
		return nil, fmt.Errorf("attachment %s is of mode %s and holds no network of other plugins", o.ID, netconf.ModeDelegated)
	}
	s, ok := h.Spec.(*delegate.Spec)
	if !ok {
		return nil, fmt.Errorf("attachment %s: another version of berthd wrote the record of its network", o.ID)
	}
	return s, nil
}

// Result is what the last plugin has answered.
func (*Delegated) Result(o hold.Owner, _ attachment.Record) (*types100.Result, error) {
	s, err := specOf(o)
	if err != nil {
		return nil, err
	}
	return s.Parsed()
}

// Interface describes the pod's interface, as the plugins' result has it: the interface that ADD has named, or else the
// first in the pod. The addresses are all that the result has: results of CNI 0.2.0 and before say no interface.
func (*Delegated) Interface(o hold.Owner) (attachment.Interface, error) {
	s, err := specOf(o)
	if err != nil {
		return attachment.Interface{}, err
	}
	r, err := s.Parsed()
	if err != nil {
		return attachment.Interface{}, err
	}
	var face attachment.Interface
	found := false
	for _, i := range r.Interfaces {
		if i.Sandbox != "" && (!found || i.Name == s.Ifname) {
			found, face.MAC, face.MTU = true, i.Mac, i.Mtu
		}
	}
	for _, ip := range r.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			face.Addresses = append(face.Addresses, a.Unmap())
		}
	}
	return face, nil
}

// In returns a copy of an attachment's owner whose plugins find the pod in netns, and its interface under the name ifname.
func (*Delegated) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = mode.LeadIn(netns, ifname, o.Clone())
	for i, h := range o.Holds {
		if s, ok := h.Spec.(*delegate.Spec); ok {
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		}
	}
	return o
}

// Again has nothing to do: no link of the attachment has Berth's stamp.
func (*Delegated) Again(hold.Owner, int64) error { return nil }

// Differs reports false: no link of the node is the attachment's.
func (*Delegated) Differs(hold.Owner, rtnl.Link) bool { return false }

// VerifyPod has the plugins compare the network with what they have made (CNI 1.1, section 4, CHECK).
func (m *Delegated) VerifyPod(ctx context.Context, o hold.Owner) error {
	return m.VerifyPodCeded(ctx, o, rtnl.Families{})
}

// VerifyPodCeded is VerifyPod for a pod whose default routes of some families lead through another network, or by another gateway than
// the plugins' own: the plugins get a result without theirs.
func (m *Delegated) VerifyPodCeded(ctx context.Context, o hold.Owner, ceded rtnl.Families) error {
	s, err := specOf(o)
	if err == nil {
		s, err = without(s, ceded)
	}
	if err != nil {
		return err
	}
	err = m.Check(ctx, s)
	var said *types.Error
	if errors.As(err, &said) {
		return fmt.Errorf("%w: %w", hold.ErrChanged, err)
	}
	return err // nil, or nobody knows
}

// Collect has the plugins of all networks give back what belongs to none of the owners (CNI 1.1, section 4, GC), IPAM plugins
// of other modes' networks too.
func (m *Delegated) Collect(ctx context.Context, owners func() []hold.Owner) (words []string, err error) {
	return m.GC(ctx, func() (kept []*delegate.Spec) {
		for _, o := range owners() {
			for _, h := range o.Holds {
				if s := delegate.Of(h.Spec); s != nil {
					kept = append(kept, s)
				}
			}
		}
		return kept
	})
}

// Ready has the plugins of a network say whether they are ready (CNI 1.1, section 4, STATUS).
func (m *Delegated) Ready(ctx context.Context, c *netconf.Conf) error {
	if err := m.Fit(attachment.Record{}, c); err != nil {
		return err
	}
	return m.Status(ctx, m.list(c))
}
