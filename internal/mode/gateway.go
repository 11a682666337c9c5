package mode

import (
	"context"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/podgateway"
)

// LeadKind is the kind of what Lead gives.
const LeadKind = podgateway.KindName

// Lead gives an attachment's owner the pod's default routes that its configuration asks for. They are the owner's last hold: the interface
// has to be there.
func Lead(o *hold.Owner, r attachment.Record, c *netconf.Conf) {
	if len(c.Gateways) > 0 {
		o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: &podgateway.Spec{Netns: r.Netns, Ifname: r.Ifname, Gateways: c.Gateways}})
	}
}

// LeadIn returns o, whose default routes are in netns, through the interface ifname. It changes o's list of holds, and none of their specs.
func LeadIn(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	for i, h := range o.Holds {
		if s, ok := h.Spec.(*podgateway.Spec); ok {
			there := *s
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		}
	}
	return o
}

// Led returns the families of a pod's default routes that an attachment has asked for.
func Led(o hold.Owner) rtnl.Families {
	if h, ok := o.Find(podgateway.KindName); ok {
		if s, ok := h.Spec.(*podgateway.Spec); ok {
			return s.Families()
		}
	}
	return rtnl.Families{}
}

// Ceder is a mode whose interfaces have default routes.
type Ceder interface {
	// VerifyPodCeded is Mode.VerifyPod for a pod whose default routes of some families are those that one of its attachments has asked for
	// (Led).
	VerifyPodCeded(ctx context.Context, o hold.Owner, ceded rtnl.Families) error
}

// VerifyPod compares the inside of the pod of an attachment with its plan, as Mode.VerifyPod does, and with what the pod's other attachments
// have changed in it.
func VerifyPod(ctx context.Context, m Mode, x *attachment.Index, e *attachment.Entry) error {
	c, cedes := m.(Ceder)
	if !cedes {
		return m.VerifyPod(ctx, e.Owner)
	}
	first := e.Owner.ID
	if e.Record.Further() {
		first = e.Record.First
	}
	all := x.Further(first)
	if f := x.Get(first); f != nil {
		all = append(all, f)
	}
	var ceded rtnl.Families
	for _, e := range all {
		if led := Led(e.Owner); e.Owner.Wanted() {
			ceded.IPv4, ceded.IPv6 = ceded.IPv4 || led.IPv4, ceded.IPv6 || led.IPv6
		}
	}
	return c.VerifyPodCeded(ctx, e.Owner, ceded)
}
