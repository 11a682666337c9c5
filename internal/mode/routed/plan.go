package routed

import (
	"cmp"
	"net"
	"net/netip"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/nft"
	"github.com/berth-net/berth/internal/kinds/hostports"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode"
	"github.com/berth-net/berth/internal/stamp"
)

// wish is what an ADD asks for beyond its record.
type wish struct {
	MTU int
	MAC net.HardwareAddr // nil: Berth chooses one
	// Ports are the host ports, for the pod's addresses.
	Ports []nft.Mapping
	// Bandwidth are the limits of the pod's link.
	Bandwidth netconf.Bandwidth
}

// plan returns the owner that a routed attachment will be, with all that it will hold. id is the
// owner's id, instance the agent's instance id, and addrs are the addresses claimed for the attachment.
func plan(id hold.ID, instance string, r attachment.Record, w wish, addrs []netip.Addr) hold.Owner {
	mac, hostMAC := link.MACs(id)
	if w.MAC != nil {
		mac = w.MAC.String()
	}
	mtu := cmp.Or(w.MTU, link.DefaultMTU)
	veth := &link.Spec{
		Name:      stamp.Link(instance, id),
		Alias:     stamp.Alias(instance, id, r.Key, r.Started, texts(addrs)...),
		Netns:     r.Netns,
		Ifname:    r.Ifname,
		MTU:       w.MTU,
		MAC:       mac,
		HostMAC:   hostMAC,
		Addresses: addrs,
		Ingress:   mode.Shape(w.Bandwidth.Ingress, mtu),
		Egress:    mode.Shape(w.Bandwidth.Egress, mtu),
	}
	o := owner(id, r, veth, addrs, addrs)
	if len(w.Ports) > 0 {
		withPorts(&o, &hostports.Spec{Link: veth.Name, Mappings: w.Ports})
	}
	return o
}

// texts returns addresses as an alias has them.
func texts(addrs []netip.Addr) []string {
	all := make([]string, len(addrs))
	for i, a := range addrs {
		all[i] = a.String()
	}
	return all
}
