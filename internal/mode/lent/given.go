package lent

import (
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/kinds/delegate"
	"github.com/berth-net/berth/internal/kinds/inside"
	"github.com/berth-net/berth/internal/mode"
)

// maxRoutes is how many routes an IPAM plugin may give.
const maxRoutes = 256

const (
	unusableAddresses = "unusable addresses of an IPAM plugin"
	unusableRoutes    = "unusable routes of an IPAM plugin"
)

func whose(s *delegate.IPAM) string { return "IPAM plugin " + s.Type }

// given returns what a plugin has given, if a pod can have it: at most one address of each family, none of them a pool's, and none that somebody
// else on the node has; and, for a native base, routes that say no more than their destinations and gateways.
func (m *Mode) given(s *delegate.IPAM) (g mode.Given, err error) {
	g.Whose = whose(s)
	r, err := s.Parsed()
	if err != nil {
		return g, err
	}
	for _, ip := range r.IPs {
		a, ok := prefixOf(ip.Address)
		if !ok {
			return g, cni.Errorf(cni.CodeConfig, unusableAddresses, "%s gives %s; expected an address with the length of its prefix", g.Whose, ip.Address.String())
		}
		if !slices.Contains(g.Addresses, a) {
			g.Addresses = append(g.Addresses, a)
		}
	}
	if err := m.usable(g); err != nil {
		return g, err
	}
	if _, native := m.Base.(Native); native {
		g.Routes, err = routes(g.Whose, r)
	}
	return g, err
}

// usable refuses addresses that a pod cannot have.
func (m *Mode) usable(g mode.Given) error {
	addrs := g.Addrs()
	if len(addrs) == 0 {
		return cni.Errorf(cni.CodeConfig, unusableAddresses, "%s gives no address", g.Whose)
	}
	for i, a := range addrs {
		if _, _, ok := netconf.ParseIP(a.String()); !ok || a.IsLinkLocalUnicast() && a.Is6() {
			return cni.Errorf(cni.CodeConfig, unusableAddresses, "%s gives %s; expected an address that a pod can have", g.Whose, a)
		}
		if slices.ContainsFunc(addrs[:i], func(b netip.Addr) bool { return b.Is4() == a.Is4() }) {
			return cni.Errorf(cni.CodeConfig, unusableAddresses, "%s gives %v; expected at most one of each family", g.Whose, addrs)
		}
		if pool := m.PoolOf(a); pool != "" {
			return cni.Errorf(cni.CodeTaken, "address not available", "%s gives %s, which is an address of pool %s: the two must not overlap", g.Whose, a, pool)
		}
	}
	if others := m.Reached(addrs); len(others) > 0 {
		return cni.Errorf(cni.CodeTaken, "address not available", "%s gives %s, which somebody else on this node has", g.Whose, others[0])
	}
	return nil
}

// routes returns the routes of a result. A route that names no gateway leads by that of its family's address, if there is one (CNI 1.1, section 5,
// "Success"). One whose gateway is the unspecified address leads to the interface's network, as the plugin dhcp says it.
func routes(whose string, r *types100.Result) (all []inside.Route, err error) {
	if len(r.Routes) > maxRoutes {
		return nil, cni.Errorf(cni.CodeConfig, unusableRoutes, "%s gives %d routes; expected at most %d", whose, len(r.Routes), maxRoutes)
	}
	for _, given := range r.Routes {
		dst, ok := prefixOf(given.Dst)
		if !ok {
			return nil, cni.Errorf(cni.CodeConfig, unusableRoutes, "%s gives a route to %s; expected a network", whose, given.Dst.String())
		}
		if given.MTU != 0 || given.AdvMSS != 0 || given.Priority != 0 || given.Table != nil || given.Scope != nil && *given.Scope != scopeOf(given) {
			return nil, cni.Errorf(cni.CodeConfig, unusableRoutes,
				"%s gives a route to %s with mtu, advmss, priority, table or scope of its own; expected dst and gw alone", whose, dst)
		}
		route := inside.Route{Dst: dst.Masked(), Gateway: gatewayOf(given, r.IPs)}
		if route.Gateway.IsValid() && route.Gateway.Is4() != dst.Addr().Is4() {
			return nil, cni.Errorf(cni.CodeConfig, unusableRoutes, "%s gives a route to %s by %s; expected a gateway of the same family", whose, dst, route.Gateway)
		}
		if !slices.Contains(all, route) {
			all = append(all, route)
		}
	}
	return all, nil
}

// scopeOf is the scope that the kernel gives a route: 0 (global) by a gateway, 253 (link) without one.
func scopeOf(r *types.Route) int {
	if len(r.GW) == 0 || r.GW.IsUnspecified() {
		return 253
	}
	return 0
}

// gatewayOf returns the gateway of a route; the zero Addr: there is none.
func gatewayOf(r *types.Route, ips []*types100.IPConfig) netip.Addr {
	if len(r.GW) > 0 {
		return specified(r.GW)
	}
	if r.Scope != nil { // of the link
		return netip.Addr{}
	}
	for _, ip := range ips {
		if (ip.Address.IP.To4() != nil) == (r.Dst.IP.To4() != nil) {
			if g := specified(ip.Gateway); g.IsValid() {
				return g
			}
		}
	}
	return netip.Addr{}
}

// specified returns an address that is not the unspecified one; the zero Addr: it is.
func specified(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	if a = a.Unmap(); !a.IsValid() || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// prefixOf returns an address with the length of its network's prefix, of the form 10.1.2.3/24.
func prefixOf(n net.IPNet) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	a = a.Unmap()
	bits, size := n.Mask.Size()
	return netip.PrefixFrom(a, bits), ok && size == a.BitLen()
}
