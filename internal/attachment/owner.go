package attachment

import (
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/link"
)

// Owner is the owner that an attachment is, by what it holds: its link, nil if
// that is gone; names, the addresses that are its own; and traffic, the
// addresses whose connections are to be forgotten when it ends.
func Owner(id hold.ID, r Record, veth *link.Spec, names, traffic []netip.Addr) hold.Owner {
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

// In is an attachment's owner with its link in a network namespace, such as the one that
// it has by another path now. o stays as it is.
func In(netns ns.Ref, o hold.Owner) hold.Owner {
	o = o.Clone()
	for i, h := range o.Holds {
		if spec, ok := h.Spec.(*link.Spec); ok {
			there := *spec
			there.Netns = netns
			o.Holds[i].Spec = &there
		}
	}
	return o
}

// Sight is what can be seen of a link that no owner in the ledger has.
type Sight struct {
	Name, Alias string
	MTU         int          // bytes
	MAC         string       // of the pod's end; "" if it was not seen
	Addresses   []netip.Addr // of the pod
}

// Adopt returns the link of an attachment that no record tells of, as far as it
// can be told from what is seen: enough to cut it off and to delete it, and, if
// the pod's addresses are known, to keep it.
func Adopt(id hold.ID, r Record, s Sight) *link.Spec {
	mac, hostMAC := link.MACs(id)
	if s.MAC != "" {
		mac = s.MAC // an ADD may ask for one
	}
	return &link.Spec{
		Name:      s.Name,
		Alias:     s.Alias,
		Netns:     r.Netns,
		Ifname:    r.Ifname,
		MTU:       s.MTU,
		MAC:       mac,
		HostMAC:   hostMAC,
		Addresses: s.Addresses,
	}
}
