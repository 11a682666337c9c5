package link

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// furnishHost gives the host's end what it lacks: its place among the live
// links, up, and the way to the pod's addresses.
func (l *Links) furnishHost(s *Spec, macs ends, link rtnl.Link, seen view) error {
	conf := link.Conf
	if link.MTU != s.mtu() { // first: a small one is the end of IPv6, settings and all
		conf = rtnl.Conf{}
		if err := l.conn.Do(rtnl.SetLink(s.Name, rtnl.MTU(s.mtu()))); err != nil {
			return err
		}
	}
	if link.Up && s.has(true) && !seen.ways6(s, link.Index) {
		conf = rtnl.Conf{}
		if err := l.renewIPv6(s); err != nil {
			return err
		}
	}
	if err := l.conn.Inside(func() error { return s.setSysctls(conf) }); err != nil {
		return err
	}
	var settings []rtnl.Setting
	if !stamp.Alike(link.Alias, s.Alias) {
		settings = append(settings, rtnl.Alias(l.alias(s)))
	}
	if link.Group != l.groups.Live() {
		settings = append(settings, rtnl.Group(l.groups.Live()))
	}
	if link.Master != 0 { // what comes in by it would be the master's
		settings = append(settings, rtnl.NoMaster())
	}
	if link.MAC != s.HostMAC {
		settings = append(settings, rtnl.MAC(macs.host))
	}
	if s.has(true) {
		settings = append(settings, rtnl.NoAddrGen())
	}
	var rs []rtnl.Request
	if len(settings) > 0 {
		rs = append(rs, rtnl.SetLink(s.Name, settings...))
	}
	rs = append(rs, rtnl.SetLink(s.Name, rtnl.Up())) // by itself: the kernel would do it before NoAddrGen
	for _, a := range s.Addresses {
		if !seen.routes[place{a, link.Index}] {
			rs = append(rs, rtnl.AddRoute(hostRoute(a, link.Index)))
		}
	}
	for _, a := range s.Addresses {
		rs = append(rs, rtnl.SetNeighbour(a, macs.pod, link.Index))
	}
	err := l.conn.Do(rs...)
	if errors.Is(err, kernel.ErrExists) { // only a route can
		return fmt.Errorf("%w: %w", hold.ErrForeign, err)
	}
	return err
}

// renewIPv6 begins IPv6 anew on a link that has lost all its ways by it. Somebody
// may have ended it, by an MTU below 1280 or disable_ipv6; what the kernel makes when
// it is back has an address of its own, to which the pod can send what neighbours
// and routers tell each other.
func (l *Links) renewIPv6(s *Spec) error {
	if err := l.conn.Inside(func() error {
		return ns.SetSysctl("ipv6/conf/"+s.Name+"/disable_ipv6", "1")
	}); err != nil {
		return err
	}
	return l.conn.Do(rtnl.SetLink(s.Name, rtnl.NoAddrGen()))
}

// ways6 reports whether a route to any of a pod's IPv6 addresses was seen.
func (v view) ways6(s *Spec, index int) bool {
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return a.Is6() && v.routes[place{a, index}] })
}

// hostRoute is the host's way to an address of the pod.
func hostRoute(a netip.Addr, index int) rtnl.Route { return rtnl.Route{Dst: host(a), Index: index} }

// host returns an address as a prefix of its full length.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// furnishPod gives the pod's end its addresses and the way out, and sets it
// and lo up. index is the pod's end. The connection to the pod is the caller's
// to close.
func furnishPod(s *Spec, macs ends, pod *ns.Netns, index int) (_ *rtnl.Conn, err error) {
	var c *rtnl.Conn // no result: those of an error are nil, and it has to be closed
	if err := pod.Do(func() (err error) {
		if err := setIPv6(s.Ifname, s.has(true), "accept_ra", "accept_dad"); err != nil {
			return err
		}
		c, err = rtnl.Here()
		return err
	}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()

	rs := []rtnl.Request{rtnl.SetLink("lo", rtnl.Up())}
	if s.has(true) {
		rs = append(rs, rtnl.SetLink(s.Ifname, rtnl.NoAddrGen()))
	}
	for _, a := range s.Addresses {
		rs = append(rs, rtnl.AddAddress(rtnl.Address{Prefix: host(a), Index: index}))
	}
	rs = append(rs, rtnl.SetLink(s.Ifname, rtnl.Up()))
	for _, g := range s.gateways() {
		rs = append(rs, rtnl.SetNeighbour(g, macs.host, index))
	}
	routes := s.podRoutes(index)
	first := len(rs)
	for _, r := range routes {
		rs = append(rs, rtnl.AddRoute(r))
	}
	errs := c.Each(rs...)
	var behind []rtnl.Route
	for i, r := range routes {
		if errors.Is(errs[first+i], kernel.ErrExists) {
			// The pod has another interface. The first one's routes win, and
			// this one's stand behind them.
			behind = append(behind, r)
			r.Metric = laterMetric + uint32(index)
			errs[first+i] = c.Do(rtnl.AddRoute(r))
		}
	}
	errs = append(errs, s.returnWay(c, behind))
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// laterMetric and an interface's index are the metric of routes for which
// another interface of the pod already has the usual one, and the number of the
// table by which the interface's own addresses go.
const laterMetric = 1 << 16

// returnWay sends what comes from the addresses of an interface whose routes
// stand behind another's by that interface all the same: the host takes it from
// there alone (nft, Live), and whoever was asked there answers there. What the
// pod knows a closer way to goes that way.
//
//	ip route add default via GATEWAY dev IFNAME table T
//	ip rule add from ADDR lookup main suppress_prefixlength 0
//	ip rule add from ADDR lookup T
func (s *Spec) returnWay(c *rtnl.Conn, behind []rtnl.Route) error {
	var rs []rtnl.Request
	for _, r := range behind {
		r.Table = laterMetric + uint32(r.Index)
		rs = append(rs, rtnl.AddRoute(r))
		if r.Dst.Bits() > 0 { // the gateway's
			continue
		}
		for _, a := range s.Addresses {
			if a.Is4() == r.Dst.Addr().Is4() {
				rs = append(rs,
					rtnl.AddRule(rtnl.Rule{From: a, Table: unix.RT_TABLE_MAIN, Priority: returnPriority, Specific: true}),
					rtnl.AddRule(rtnl.Rule{From: a, Table: r.Table, Priority: returnPriority + 1}))
			}
		}
	}
	for _, err := range c.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrExists) { // of an earlier interface with this address
			return err
		}
	}
	return nil
}

// returnPriority is that of the rules for returnWay: just before the main table,
// whose priority is 32766.
const returnPriority = 32764

// gateways are those of the families that the pod has.
func (s *Spec) gateways() []netip.Addr {
	var gs []netip.Addr
	if s.has(false) {
		gs = append(gs, Gateway4)
	}
	if s.has(true) {
		gs = append(gs, Gateway6)
	}
	return gs
}

// podRoutes are the pod's routes: for each family one to the gateway, and all
// else by it.
func (s *Spec) podRoutes(index int) []rtnl.Route {
	var routes []rtnl.Route
	for _, g := range s.gateways() {
		everything := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if g.Is4() {
			everything = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		routes = append(routes,
			rtnl.Route{Dst: host(g), Index: index},
			rtnl.Route{Dst: everything, Gateway: g, Index: index})
	}
	return routes
}

// setIPv6 switches IPv6 on a link of the calling thread's network namespace
// off, or on with some features of it off. Where the kernel has no IPv6 it is
// off already.
func setIPv6(name string, on bool, off ...string) error {
	dir := "ipv6/conf/" + name + "/"
	disabled, err := ns.Sysctl(dir + "disable_ipv6")
	if errors.Is(err, fs.ErrNotExist) && !on {
		return nil
	}
	if err != nil {
		return err
	}
	want := "1"
	if on {
		want = "0"
	}
	// Asked first, because setting it takes the lock of all links.
	if disabled != want {
		if err := ns.SetSysctl(dir+"disable_ipv6", want); err != nil {
			return err
		}
	}
	if !on {
		return nil
	}
	for _, feature := range off {
		if err := ns.SetSysctl(dir+feature, "0"); err != nil {
			return err
		}
	}
	return nil
}
