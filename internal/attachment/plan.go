package attachment

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/link"
)

// Wish is what an ADD asks for beyond its record.
type Wish struct {
	MTU int
	MAC net.HardwareAddr // nil: chosen
}

// Plan returns the owner that a routed attachment is: what it will hold, given
// its incarnation, the agent's instance and the addresses claimed for it.
func Plan(id hold.ID, instance string, r Record, w Wish, addrs []netip.Addr) hold.Owner {
	o := hold.Owner{ID: id, Meta: r.Encode()}
	for _, a := range addrs {
		o.Names = append(o.Names, ipam.Name(a))
	}
	mac, hostMAC := link.MACs(id)
	if w.MAC != nil {
		mac = w.MAC.String()
	}
	traffic := &flows.Spec{Addresses: addrs}
	veth := &link.Spec{
		Name:      link.Name(instance[:rtnl.PrefixLen], id),
		Alias:     Alias(instance, id, r.Key),
		Netns:     r.Netns,
		Ifname:    r.Ifname,
		MTU:       w.MTU,
		MAC:       mac,
		HostMAC:   hostMAC,
		Addresses: addrs,
	}
	o.Holds = []hold.Hold{{Owner: id, Spec: traffic}, {Owner: id, Spec: veth}}
	return o
}

// maxAlias is how many bytes a link's alias can have (IFALIASZ - 1).
const maxAlias = 255

// Alias is the stamp of a host veth, for people and for an agent that lost its
// ledger: instance, incarnation, and the key, cut off where the kernel's limit
// demands.
func Alias(instance string, id hold.ID, k Key) string {
	alias := fmt.Sprintf("berth %s %s %s", instance, id, k)
	return alias[:min(len(alias), maxAlias)]
}
