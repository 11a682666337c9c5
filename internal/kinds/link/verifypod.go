package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/nlsock"
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// VerifyPod compares the pod's side of a link with its spec, for CHECK. It returns nil;
// hold.ErrGone if the namespace or the interface does not exist; hold.ErrChanged with all
// that differs; or the reason why it could not look, such as that ctx has ended. VerifyPod ignores
// addresses, routes and rules that the pod has besides.
func (l *Links) VerifyPod(ctx context.Context, h hold.Hold) error {
	return l.VerifyPodCeded(ctx, h, rtnl.Families{})
}

// VerifyPodCeded is VerifyPod for a pod whose default routes of some families lead through another network (kinds/podgateway): they are not
// the link's then.
func (l *Links) VerifyPodCeded(ctx context.Context, h hold.Hold, ceded rtnl.Families) error {
	s, err := l.spec(h)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("interface %s in %s", s.Ifname, s.Netns.Path)
	pod, err := s.Netns.Open()
	if errors.Is(err, ns.ErrGone) {
		return fmt.Errorf("%s: %w: %w", what, hold.ErrGone, err)
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	defer pod.Close()
	var settings []string // that differ
	if err := pod.Do(func() (err error) { settings, err = s.podSettings(); return err }); err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	c, err := rtnl.OpenFor(ctx, pod) // not Here: this Conn still works after a list that the caller does not read to its end
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	defer c.Close()

	var link rtnl.Link
	err = c.Do(rtnl.GetLink(s.Ifname, &link))
	if errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("%s: %w", what, hold.ErrGone)
	}
	if errors.Is(err, nlsock.ErrLong) { // no veth says so much, not even with all second names that it can have
		return changed(what, []string{fmt.Sprintf("not the other end of link %s: it says more than the agent reads", s.Name)})
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	d, err := podDifferences(c, s, link, ceded)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	own, err := l.endsAt(s, pod, link.Index)
	if err != nil {
		return fmt.Errorf("looking for the other end of %s: %w", what, err)
	}
	if !own {
		d = append([]string{"not the other end of link " + s.Name}, d...)
	}
	return changed(what, append(d, settings...))
}

// endsAt reports whether the other end of a spec's link is the interface with an index in the
// pod. It asks the host's end, whose answer a pod cannot forge: a pod can make an interface
// with any name, MAC and addresses, and can choose the indices of both its ends, in the pod
// and in namespaces of its own.
func (l *Links) endsAt(s *Spec, pod *ns.Netns, index int) (bool, error) {
	host, err := l.locate(s)
	if errors.Is(err, kernel.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var id int // after locate, because the kernel gives the namespace its number only when somebody reads the link
	if err := l.conn.Do(rtnl.NetnsID(pod.Fd(), &id)); err != nil {
		return false, err
	}
	return host.EndsAt(index, id), nil
}

// podSettings returns which of the sysctls that furnishPod sets differ, in the calling
// thread's network namespace. A sysctl that does not exist does not differ: there is no
// interface, or the kernel has no IPv6.
func (s *Spec) podSettings() ([]string, error) {
	want := map[string]string{"disable_ipv6": "1"}
	if s.has(true) {
		want = map[string]string{"disable_ipv6": "0", "accept_ra": "0"}
	}
	var d []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		have, err := ns.Sysctl("ipv6/conf/" + s.Ifname + "/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if have != want[name] {
			d = append(d, fmt.Sprintf("%s %s, not %s", name, have, want[name]))
		}
	}
	return d, nil
}

// podDifferences returns what is not as furnishPod left it, but for the default routes of ceded families.
func podDifferences(c *rtnl.Conn, s *Spec, link rtnl.Link, ceded rtnl.Families) ([]string, error) {
	var d []string
	differ := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if link.MAC != s.MAC {
		differ("mac %s, not %s", link.MAC, s.MAC)
	}
	if link.MTU != s.mtu() {
		differ("mtu %d, not %d", link.MTU, s.mtu())
	}
	if !link.Up {
		differ("down")
	}
	if s.Egress != (rtnl.Rate{}) {
		var q rtnl.Qdisc
		if err := c.GetQdisc(link.Index, &q); err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return nil, err
		}
		if q.Shape != s.Egress {
			differ("sends with %s, not %s", q, s.Egress)
		}
	}

	missing, err := missingAddresses(c, s, link.Index)
	if err != nil {
		return nil, err
	}
	for _, a := range missing {
		differ("no address %s", a)
	}
	routes, behind, err := missingRoutes(c, s, link.Index, ceded)
	if err != nil {
		return nil, err
	}
	back, rules, err := missingReturn(c, s, behind)
	if err != nil {
		return nil, err
	}
	for _, r := range append(routes, back...) {
		differ("no route %s", r)
	}
	for _, r := range rules {
		differ("no rule %s", r)
	}

	for _, g := range s.gateways() {
		var n rtnl.Neighbour
		err := c.Do(rtnl.GetNeighbour(g, link.Index, &n))
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return nil, err
		}
		if n.MAC != s.HostMAC {
			differ("no neighbour %s at %s", g, s.HostMAC)
		}
	}
	return d, nil
}

// inPod is how many items of a list in a pod the agent looks at. A pod can make its lists
// as long as it likes, and reading them takes the agent's time and memory.
const inPod = 4096

// errLong says that a list in a pod is longer than inPod.
var errLong = fmt.Errorf("the pod has more than %d of them on this interface, and the agent does not look at the rest", inPod)

// missingAddresses returns the addresses of a pod that its interface lacks. It looks up
// each IPv6 address. It lists the IPv4 addresses, and keeps none that it does not look for.
func missingAddresses(c *rtnl.Conn, s *Spec, index int) ([]netip.Prefix, error) {
	var missing, missing4 []netip.Prefix
	for _, a := range s.Addresses {
		if a.Is4() {
			missing4 = append(missing4, host(a))
			continue
		}
		var seen rtnl.Address
		err := c.Do(rtnl.GetAddress6(a, index, &seen))
		if err != nil && !errors.Is(err, kernel.ErrNotFound) {
			return nil, err
		}
		if seen.Prefix != host(a) {
			missing = append(missing, host(a))
		}
	}
	if len(missing4) == 0 {
		return missing, nil
	}
	looked := 0
	err := c.EachAddress(index, false, func(a rtnl.Address) error {
		missing4 = slices.DeleteFunc(missing4, func(p netip.Prefix) bool { return p == a.Prefix })
		return enough(len(missing4), &looked)
	})
	if err != nil {
		return nil, fmt.Errorf("looking for addresses: %w", err)
	}
	return append(missing, missing4...), nil
}

// missingRoutes returns a pod's routes that the pod lacks, and its routes that are behind another
// interface's (laterMetric). missingRoutes looks each route up, in constant time, and lists the pod's
// routes only if a look-up finds another route. Default routes of ceded families are none of them.
func missingRoutes(c *rtnl.Conn, s *Spec, index int, ceded rtnl.Families) (missing, behind []rtnl.Route, err error) {
	wanted := slices.DeleteFunc(s.podRoutes(index), func(r rtnl.Route) bool { return r.Dst.Bits() == 0 && ceded.Has(r.Dst.Addr()) })
	seen := make([]rtnl.Route, len(wanted))
	rs := make([]rtnl.Request, len(wanted))
	for i, r := range wanted {
		rs[i] = rtnl.MatchRouteBy(probe(r.Dst), index, &seen[i])
	}
	c.Each(rs...) // a route that the look-up does not find may still be in the list
	is := func(seen, r rtnl.Route) bool {
		if seen != withMetric(r, seen.Metric) {
			return false
		}
		if seen.Metric == laterMetric+uint32(index) {
			behind = append(behind, r)
		}
		return true
	}
	for i, r := range wanted {
		if !is(seen[i], r) {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return nil, behind, nil
	}
	looked := 0
	err = c.EachRoute(rtnl.RouteFilter{Index: index}, func(seen rtnl.Route) error {
		missing = slices.DeleteFunc(missing, func(r rtnl.Route) bool { return is(seen, r) })
		return enough(len(missing), &looked)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("looking for routes: %w", err)
	}
	return missing, behind, nil
}

// missingReturn returns the routes and rules of returnWay that a pod lacks. returnWay has added them
// for the routes that are behind another interface's. missingReturn lists returnWay's table and the
// pod's rules. The usual pod has one interface, and no such routes.
func missingReturn(c *rtnl.Conn, s *Spec, behind []rtnl.Route) (routes []rtnl.Route, rules []rtnl.Rule, err error) {
	if len(behind) == 0 {
		return nil, nil, nil
	}
	routes, rules = s.returnPlan(behind)
	looked := 0
	err = c.EachRoute(rtnl.RouteFilter{Index: behind[0].Index, Table: routes[0].Table}, func(seen rtnl.Route) error {
		routes = slices.DeleteFunc(routes, func(r rtnl.Route) bool { return seen == withMetric(r, seen.Metric) })
		return enough(len(routes), &looked)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("looking for routes: %w", err)
	}
	for _, ipv6 := range []bool{false, true} {
		if !slices.ContainsFunc(rules, func(r rtnl.Rule) bool { return r.From.Is6() == ipv6 }) {
			continue
		}
		looked := 0
		err := c.EachRule(ipv6, func(seen rtnl.Rule, ours bool) error {
			rules = slices.DeleteFunc(rules, func(r rtnl.Rule) bool { return ours && seen == r })
			return enough(len(rules), &looked)
		})
		if err != nil {
			return nil, nil, fmt.Errorf("looking for policy rules: %w", err)
		}
	}
	return routes, rules, nil
}

// probe returns an address by which a look-up finds the route to a prefix, if there is no
// more specific one. For a default route it is an address that nobody has (RFC 5737,
// RFC 3849).
func probe(dst netip.Prefix) netip.Addr {
	switch {
	case dst.Bits() > 0:
		return dst.Addr()
	case dst.Addr().Is4():
		return netip.MustParseAddr("203.0.113.254")
	}
	return netip.MustParseAddr("2001:db8:ffff::fe")
}

// enough ends the reading of a list that is too long: with errLong if something is still missing, else
// with rtnl.ErrStop.
func enough(missing int, looked *int) error {
	*looked++
	switch {
	case *looked < inPod:
		return nil
	case missing == 0:
		return rtnl.ErrStop
	}
	return errLong
}
