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

// furnishHost gives the host's end what it lacks: it sets sysctls and attributes, moves the
// link to the live group, limits what it sends and lets in, sets it up, and adds the routes and
// neighbours for the pod's addresses. After an error, up reports whether furnishHost may have set the link
// up. furnishHost goes by the link's index: somebody may have given the link's name to another
// link since the caller looked. For sysctls furnishHost may need the name that the caller has seen. If
// the link has lost that name, the error is errRenamed.
func (l *Links) furnishHost(s *Spec, macs ends, link rtnl.Link, seen view) (up bool, err error) {
	conf := link.Conf
	if link.MTU != s.mtu() { // first, because IPv6 and its settings end on a link whose MTU is too small
		conf = rtnl.Conf{}
		if err := l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.MTU(s.mtu()))); err != nil {
			return false, err
		}
	}
	if link.Up && s.has(true) && !seen.ways6(s, link.Index) {
		conf = rtnl.Conf{}
		if err := l.renewIPv6(link); err != nil {
			return false, err
		}
	}
	if err := l.conn.Inside(func() error {
		confs := l.confs(link)
		defer confs.close()
		return confs.setSysctls(s.sysctls(conf, l.forwards()))
	}); err != nil {
		return false, err
	}
	var settings []rtnl.Setting
	if !stamp.Alike(link.Alias, s.Alias) {
		settings = append(settings, rtnl.Alias(l.alias(s)))
	}
	if link.Master != 0 { // else packets that come in by the link would count as the master's
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
		rs = append(rs, rtnl.SetLinkAt(link.Index, settings...))
	}
	if err := l.police(s, seen, link.Index); err != nil {
		return false, err
	}
	rs = append(rs, s.shape(seen, link.Index)...)
	// The kernel sets the group first, and nobody sees the link between the two: a plugin that cuts the
	// pod off finds a new link in the coming group, and deletes it, or finds it up, and sets it down.
	// NoAddrGen has a request of its own, because in one request the kernel would set the link up first.
	settings = []rtnl.Setting{rtnl.Up()}
	if link.Group != l.groups.Live() {
		settings = append(settings, rtnl.Group(l.groups.Live()))
	}
	setsUp := len(rs)
	rs = append(rs, rtnl.SetLinkAt(link.Index, settings...))
	for _, a := range s.Addresses {
		if !seen.routes[place{a, link.Index}] {
			rs = append(rs, rtnl.AddRoute(hostRoute(a, link.Index)))
		}
	}
	for _, a := range s.Addresses {
		rs = append(rs, rtnl.SetNeighbour(a, macs.pod, link.Index))
	}
	errs := l.conn.Each(rs...)
	up = !errors.Is(errs[setsUp], kernel.ErrNotFound)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		err = errs[i]
	}
	if errors.Is(err, kernel.ErrExists) { // of these requests only AddRoute can return this error
		return up, fmt.Errorf("%w: %w", hold.ErrForeign, err)
	}
	return up, err
}

// renewIPv6 restarts IPv6 on a link that has lost all its IPv6 routes: it switches IPv6 off,
// for setSysctls to switch it on again, and sets addrgenmode none. Somebody may have ended
// IPv6 on the link, by an MTU below 1280 or by disable_ipv6. When IPv6 comes back then, the
// kernel gives the link a link-local address, to which the pod could send messages of
// neighbours and routers.
func (l *Links) renewIPv6(link rtnl.Link) error {
	if err := l.conn.Inside(func() error {
		confs := l.confs(link)
		defer confs.close()
		return confs.set(sysctl{family: "ipv6", name: "disable_ipv6", want: 1})
	}); err != nil {
		return err
	}
	return l.conn.Do(rtnl.SetLinkAt(link.Index, rtnl.NoAddrGen()))
}

// ways6 reports whether the view has a route to any of a pod's IPv6 addresses.
func (v view) ways6(s *Spec, index int) bool {
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return a.Is6() && v.routes[place{a, index}] })
}

// hostRoute returns the host's route to an address of the pod.
func hostRoute(a netip.Addr, index int) rtnl.Route {
	r := rtnl.Route{Dst: host(a), Index: index}
	if a.Is6() {
		r.Metric = hostMetric6
	}
	return r
}

// hostMetric6 is the metric of the host's routes to pods' IPv6 addresses. A machine of the LAN can give the node a route
// to such an address by a router advertisement that calls the address on-link: such a route has the metric 256
// (IP6_RT_PRIO_ADDRCONF), and the default, 1,024, would lose against it.
const hostMetric6 = 128

// host returns an address as a prefix of its full length.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// furnishPod gives the pod's end, which has the given index, its addresses, routes and
// neighbours, limits what it sends, and sets it and lo up. The caller closes the returned connection to the pod.
func furnishPod(s *Spec, macs ends, pod *ns.Netns, index int) (_ *rtnl.Conn, err error) {
	var c *rtnl.Conn // not a named result, which `return nil, err` would set to nil before it is closed
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
	if s.Egress != (rtnl.Rate{}) {
		rs = append(rs, rtnl.Shape(index, s.Egress))
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
	if errors.Is(errs[0], kernel.ErrNotFound) {
		errs[0] = nil // the pod has given its lo another name, and gets along without lo up
	}
	var behind []rtnl.Route
	for i, r := range routes {
		if errors.Is(errs[first+i], kernel.ErrExists) {
			// The pod has another interface with the same routes. The other interface's routes win, and
			// this interface's routes get a higher metric.
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

// laterMetric plus an interface's index is the metric of the interface's routes if another interface of
// the pod already has the usual routes. The sum is also the number of the table by which the pod routes
// packets from the interface's own addresses.
const laterMetric = 1 << 16

// returnWay makes packets from the addresses of an interface leave by that interface, even
// though another interface's routes are before its own. The host accepts them from that
// interface only (nft, Live), and a server in the pod answers over the interface by which the question
// came. Packets to a destination for which the pod has a route more specific than the default go by
// that route.
//
//	ip route add default via GATEWAY dev IFNAME table T
//	ip rule add from ADDR lookup main suppress_prefixlength 0
//	ip rule add from ADDR lookup T
func (s *Spec) returnWay(c *rtnl.Conn, behind []rtnl.Route) error {
	var rs []rtnl.Request
	routes, rules := s.returnPlan(behind)
	for _, r := range routes {
		rs = append(rs, rtnl.AddRoute(r))
	}
	for _, r := range rules {
		rs = append(rs, rtnl.AddRule(r))
	}
	for _, err := range c.Each(rs...) {
		if err != nil && !errors.Is(err, kernel.ErrExists) { // an earlier interface with this address may have left such routes and rules
			return err
		}
	}
	return nil
}

// returnPlan returns what returnWay adds.
func (s *Spec) returnPlan(behind []rtnl.Route) (routes []rtnl.Route, rules []rtnl.Rule) {
	for _, r := range behind {
		r.Table = laterMetric + uint32(r.Index)
		routes = append(routes, r)
		if r.Dst.Bits() > 0 { // the route to the gateway
			continue
		}
		for _, a := range s.Addresses {
			if a.Is4() == r.Dst.Addr().Is4() {
				rules = append(rules,
					rtnl.Rule{From: a, Table: unix.RT_TABLE_MAIN, Priority: returnPriority, Specific: true},
					rtnl.Rule{From: a, Table: r.Table, Priority: returnPriority + 1})
			}
		}
	}
	return routes, rules
}

// returnPriority is the priority of returnWay's first rule; the second rule has the next number. Both
// come just before the main table's rule, whose priority is 32766.
const returnPriority = 32764

// gateways returns the gateways of the families that the pod has.
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

// podRoutes returns the pod's routes: for each family a route to the gateway, and a default route by
// the gateway.
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

// setIPv6 switches IPv6 on or off, on a link of the calling thread's network namespace. If it switches
// IPv6 on, it switches off the features of IPv6 that the parameter off names. A kernel without IPv6
// counts as off.
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
	// setIPv6 reads the value first, because writing it takes the kernel's lock of all links.
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
