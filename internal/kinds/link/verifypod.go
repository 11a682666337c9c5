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
	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// VerifyPod compares the pod's side of a link with its spec, for CHECK: nil,
// hold.ErrGone if the namespace or the interface is not there, hold.ErrChanged
// with all that differs, or why it could not be seen. What the pod has besides
// is its own business.
func (l *Links) VerifyPod(_ context.Context, h hold.Hold) error {
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
	c, err := rtnl.Open(pod) // which can go on after a list that is not read to its end
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	defer c.Close()

	var link rtnl.Link
	err = c.Do(rtnl.GetLink(s.Ifname, &link))
	if errors.Is(err, kernel.ErrNotFound) {
		return fmt.Errorf("%s: %w", what, hold.ErrGone)
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	d, err := podDifferences(c, s, link)
	if err != nil {
		return fmt.Errorf("looking at %s: %w", what, err)
	}
	return changed(what, append(d, settings...))
}

// podSettings says which of the sysctls that furnishPod sets differ, in the
// calling thread's network namespace. Without the interface none does, nor
// where the kernel has no IPv6.
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

// podDifferences says what is not as furnishPod left it.
func podDifferences(c *rtnl.Conn, s *Spec, link rtnl.Link) ([]string, error) {
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

	missing, err := missingAddresses(c, s, link.Index)
	if err != nil {
		return nil, err
	}
	for _, a := range missing {
		differ("no address %s", a)
	}
	routes, err := missingRoutes(c, s, link.Index)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		differ("no route %s", r)
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

// inPod is how many items of a list are looked at that a pod makes as long as it
// likes: time and memory are the agent's.
const inPod = 4096

// errLong says that a list of a pod's is longer than that.
var errLong = fmt.Errorf("the pod has more than %d of them on this interface, and the rest is not looked at", inPod)

// missingAddresses returns those of a pod's addresses that its interface lacks.
// Of IPv6 each is looked up; of IPv4 they are listed, and nothing is kept of what
// else is in the list.
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

// missingRoutes returns those of a pod's routes that it lacks. Each is looked up,
// in constant time; only if others stand before one of them, routes are listed.
func missingRoutes(c *rtnl.Conn, s *Spec, index int) ([]rtnl.Route, error) {
	wanted := s.podRoutes(index)
	seen := make([]rtnl.Route, len(wanted))
	rs := make([]rtnl.Request, len(wanted))
	for i, r := range wanted {
		rs[i] = rtnl.MatchRouteBy(probe(r.Dst), index, &seen[i])
	}
	c.Each(rs...) // what is not found there may be in the list
	var missing []rtnl.Route
	for i, r := range wanted {
		if seen[i] != withMetric(r, seen[i].Metric) {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	looked := 0
	err := c.EachRoute(rtnl.RouteFilter{Index: index}, func(seen rtnl.Route) error {
		missing = slices.DeleteFunc(missing, func(r rtnl.Route) bool { return seen == withMetric(r, seen.Metric) })
		return enough(len(missing), &looked)
	})
	if err != nil {
		return nil, fmt.Errorf("looking for routes: %w", err)
	}
	return missing, nil
}

// probe is an address that a route to a prefix leads to, if none is more
// specific: of a default route one that is nobody's (RFC 5737, RFC 3849).
func probe(dst netip.Prefix) netip.Addr {
	switch {
	case dst.Bits() > 0:
		return dst.Addr()
	case dst.Addr().Is4():
		return netip.MustParseAddr("203.0.113.254")
	}
	return netip.MustParseAddr("2001:db8:ffff::fe")
}

// enough ends a list that is too long, with an error if anything is missing yet.
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
