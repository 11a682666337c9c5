package routed

import (
	"net/netip"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode"
)

// owner returns an attachment's owner. veth is the attachment's link, nil if the link is gone. names
// are the attachment's addresses. When the owner ends, the agent makes the kernel forget the
// connections of the addresses in traffic.
func owner(id hold.ID, r attachment.Record, veth *link.Spec, names, traffic []netip.Addr) hold.Owner {
	o := hold.Owner{ID: id, Meta: r.Encode()}
	for _, a := range names {
		o.Names = append(o.Names, ipam.Name(a))
	}
	if len(traffic) > 0 {
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &flows.Spec{Addresses: traffic}})
	}
	if veth != nil {
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: veth})
	}
	return o
}

// withPorts gives an owner host ports. The ports are the owner's last hold, so that they lead to a pod
// that is there.
func withPorts(o *hold.Owner, s *hostports.Spec) {
	for _, m := range s.Mappings {
		o.Names = append(o.Names, hostports.Name(m))
	}
	o.Holds = append(o.Holds, hold.Hold{Owner: o.ID, Spec: s})
}

// In returns an attachment's owner whose link is in another network namespace, or in the same
// namespace by another path, and has the name ifname there. o stays as it is.
func (*Routed) In(netns ns.Ref, ifname string, o hold.Owner) hold.Owner {
	o = mode.LeadIn(netns, ifname, o.Clone())
	for i, h := range o.Holds {
		if spec, ok := h.Spec.(*link.Spec); ok {
			there := *spec
			there.Netns, there.Ifname = netns, ifname
			o.Holds[i].Spec = &there
		}
	}
	return o
}
