// Package chained is the mode of an agent that stands in a list of plugins behind the one that has made the pod's interface. It gives
// the interface host ports and limits of bandwidth (kinds/hostports, kinds/shaping), and nothing else: interface and address are the
// other plugin's, and the result is that plugin's, unchanged.
//
// chained.go answers the verbs, plan.go makes an attachment's plan, and result.go keeps the prevResult.
package chained

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/shaping"
	"github.com/berth-net/berth/internal/mode"
)

// Options are what the mode works with.
type Options struct {
	// Look looks for the interface of a pod (shaping.Limits.Look).
	Look func(netns ns.Ref, ifname string, addrs []netip.Addr) (shaping.Sight, error)
	// VerifyPod compares the pod's end of an interface with its plan (shaping.Limits.VerifyPod).
	VerifyPod func(context.Context, *shaping.Spec) error
	// ClaimPorts takes ports of the node for an owner. undo gives them back.
	ClaimPorts func(context.Context, hold.ID, []nft.Mapping) (undo func(), err error)
	// Vacate waits until no port of the node leads to a former pod with one of these addresses.
	Vacate func(context.Context, []netip.Addr) error
	// Lacks returns the parts of the agent's table that the kernel lacks.
	Lacks func() nft.Parts
}

// Chained is the mode.
type Chained struct{ Options }

var _ mode.Mode = (*Chained)(nil)

// New returns the mode.
func New(o Options) *Chained { return &Chained{o} }

// Name is what configurations and records call the mode.
func (*Chained) Name() string { return netconf.ModeChained }

// Pooled says that the addresses are of no pool.
func (*Chained) Pooled() bool { return false }

// NeedsPod reports false: the limit of the pod's end ends with the pod.
func (*Chained) NeedsPod(hold.Owner) bool { return false }

// Place is the kind of the hold that has the pod's interface.
func (*Chained) Place() string { return shaping.KindName }

// Vacant accepts each place: the interface has to be there, and Plan looks for it.
func (*Chained) Vacant(attachment.Record, mode.Pod) error { return nil }

// Taken has nothing to do: the addresses are of no pool.
func (*Chained) Taken(hold.Owner) {}

// Again has nothing to do: no link of the attachment has Berth's stamp.
func (*Chained) Again(hold.Owner, int64) error { return nil }

// Differs reports false: no link of the node is the attachment's.
func (*Chained) Differs(hold.Owner, rtnl.Link) bool { return false }

// linkOf returns the pod's link, with its limits.
func linkOf(o hold.Owner) (*shaping.Spec, error) {
	h, ok := o.Find(shaping.KindName)
	if !ok {
		return nil, fmt.Errorf("attachment %s is of mode %s and knows no link", o.ID, netconf.ModeChained)
	}
	s, ok := h.Spec.(*shaping.Spec)
	if !ok {
		return nil, fmt.Errorf("attachment %s: another version of berthd wrote the record of its link", o.ID)
	}
	return s, nil
}

// Interface describes the pod's interface: the link that the kernel has shown, and the addresses of prevResult.
func (*Chained) Interface(o hold.Owner) (attachment.Interface, error) {
	s, err := linkOf(o)
	if err != nil {
		return attachment.Interface{}, err
	}
	prev, err := prevOf(o)
	if err != nil {
		return attachment.Interface{}, err
	}
	face := attachment.Interface{Host: s.Link, MTU: s.MTU, Addresses: addresses(prev, s.Ifname), Ingress: s.Ingress, Egress: s.Egress}
	if i := interfaceOf(prev, s.Ifname); i >= 0 {
		face.MAC = prev.Interfaces[i].Mac
	}
	if h, ok := o.Find(hostports.KindName); ok {
		if ports, ok := h.Spec.(*hostports.Spec); ok {
			for _, m := range ports.Mappings {
				m.Via, m.BridgePort = 0, 0 // a configuration does not say it
				face.Ports = append(face.Ports, m)
			}
		}
	}
	return face, nil
}

// In returns a copy of an attachment's owner whose interface is in netns, under the name ifname.
func (*Chained) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = o.Clone()
	for i, h := range o.Holds {
		if s, ok := h.Spec.(*shaping.Spec); ok {
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		}
	}
	return o
}

// VerifyPod reports whether the interface is still in the pod, with its limit.
func (m *Chained) VerifyPod(ctx context.Context, o hold.Owner) error {
	s, err := linkOf(o)
	if err != nil {
		return err
	}
	return m.Options.VerifyPod(ctx, s)
}
