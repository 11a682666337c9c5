package mode

import (
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/kernel/nft"
)

// Mappings returns what the host ports of a configuration map for a pod with these addresses, in
// order. A port without an address of the node is mapped for each family that the pod has.
func Mappings(ports []netconf.Port, addrs []netip.Addr) []nft.Mapping {
	var all []nft.Mapping
	for _, p := range ports {
		for _, a := range addrs {
			host := p.HostIP
			switch {
			case !host.IsValid() && a.Is4():
				host = netip.IPv4Unspecified()
			case !host.IsValid():
				host = netip.IPv6Unspecified()
			case host.Is4() != a.Is4():
				continue
			}
			all = append(all, nft.Mapping{
				Protocol: p.Protocol, Host: netip.AddrPortFrom(host, p.Host), Pod: netip.AddrPortFrom(a, p.Container),
			})
		}
	}
	slices.SortFunc(all, nft.Mapping.Compare)
	return slices.Compact(all)
}
