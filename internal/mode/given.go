package mode

import (
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/kinds/inside"
)

// Given is what a pool or somebody else, such as an IPAM plugin, gives to an attachment.
type Given struct {
	Whose     string         // who gives it, for errors, such as "IPAM plugin static"
	Addresses []netip.Prefix // one of each family at most, with the lengths of their networks' prefixes
	Routes    []inside.Route // besides those to the networks of the addresses, in the order in which they are made
}

// Addrs returns the addresses without their prefixes' lengths.
func (g Given) Addrs() []netip.Addr {
	all := make([]netip.Addr, len(g.Addresses))
	for i, a := range g.Addresses {
		all[i] = a.Addr()
	}
	return all
}

// FitGiven refuses, for a native mode, what others have given and no interface can have: routes that it cannot reach, and addresses for which the
// configuration's MTU is too small or its default route leads nowhere.
func FitGiven(c *netconf.Conf, g Given) error {
	addrs := g.Addrs()
	if err := FitMTU(c.MTU, g.Whose, addrs); err != nil {
		return err
	}
	near := slices.Clone(g.Addresses) // the networks that the interface reaches without a gateway
	for _, r := range g.Routes {
		if !r.Gateway.IsValid() {
			near = append(near, r.Dst)
		}
	}
	reaches := func(gateway netip.Addr) bool {
		return gateway.Is6() && gateway.IsLinkLocalUnicast() || slices.ContainsFunc(near, func(p netip.Prefix) bool { return p.Masked().Contains(gateway) })
	}
	for _, r := range g.Routes {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == r.Dst.Addr().Is4() }) {
			return cni.Errorf(cni.CodeConfig, "unusable routes of an IPAM plugin", "%s gives a route to %s, and no address of its family", g.Whose, r.Dst)
		}
		if r.Gateway.IsValid() && !reaches(r.Gateway) {
			return cni.Errorf(cni.CodeConfig, "unusable routes of an IPAM plugin", "%s gives a route to %s by %s, which is on no network of %v", g.Whose, r.Dst, r.Gateway, g.Addresses)
		}
	}
	for _, gateway := range c.Gateways {
		if !reaches(gateway) {
			return cni.Errorf(cni.CodeConfig, "invalid request for a default route", "default-route is %s, which is on no network that %s gives", gateway, g.Whose)
		}
	}
	return nil
}
