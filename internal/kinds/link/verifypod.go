package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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
	var c *rtnl.Conn
	var settings []string // that differ
	if err := pod.Do(func() (err error) {
		if settings, err = s.podSettings(); err != nil {
			return err
		}
		c, err = rtnl.Here()
		return err
	}); err != nil {
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

	addresses, err := c.Addresses(link.Index)
	if err != nil {
		return nil, err
	}
	for _, a := range s.Addresses {
		if !slices.Contains(addresses, rtnl.Address{Prefix: host(a), Index: link.Index}) {
			differ("no address %s", host(a))
		}
	}

	routes, err := c.Routes(rtnl.RouteFilter{Index: link.Index})
	if err != nil {
		return nil, err
	}
	for _, want := range s.podRoutes(link.Index) {
		if !slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r == withMetric(want, r.Metric) }) {
			differ("no route %s", want)
		}
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
