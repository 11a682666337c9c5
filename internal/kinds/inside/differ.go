package inside

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Differences returns what in the pod is not as Prepare and Open left it. It ignores addresses and routes that the pod has besides.
func (p *Pod) Differences(f Face, l rtnl.Link) (d []string, err error) {
	differ := func(format string, args ...any) { d = append(d, fmt.Sprintf(format, args...)) }
	if !l.Up {
		differ("down")
	}
	if err := p.At.Do(func() error {
		for _, x := range f.sysctls(notifies) {
			have, err := ns.Sysctl(x.name(l.Name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if have != x.want {
				differ("%s %s, not %s", x.name(l.Name), have, x.want)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	addrs, err := p.MissingAddresses(f, l.Index)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		differ("no address %s", a)
	}
	routes, err := p.MissingRoutes(f, l.Index)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		differ("no route %s", r)
	}
	return d, nil
}

// MissingAddresses returns the addresses that an interface lacks.
func (p *Pod) MissingAddresses(f Face, index int) ([]netip.Prefix, error) {
	missing := slices.Clone(f.Addresses)
	for _, ipv6 := range []bool{false, true} {
		looked := 0
		err := p.Conn.EachAddress(index, ipv6, func(a rtnl.Address) error {
			missing = slices.DeleteFunc(missing, func(p netip.Prefix) bool { return p == a.Prefix })
			return enough(len(missing), &looked)
		})
		if err != nil {
			return nil, fmt.Errorf("looking for addresses: %w", err)
		}
	}
	return missing, nil
}

// MissingRoutes returns the routes that an interface lacks. A default route that another network of the pod has put aside (kinds/podgateway) is
// there.
func (p *Pod) MissingRoutes(f Face, index int) ([]rtnl.Route, error) {
	missing := f.routes(index)
	isDefault := func(r rtnl.Route) bool { return r.Dst.Bits() == 0 }
	for _, table := range []uint32{0, rtnl.Aside(index)} {
		if table != 0 && !slices.ContainsFunc(missing, isDefault) {
			break
		}
		looked := 0
		err := p.Conn.EachRoute(rtnl.RouteFilter{Index: index, Table: table}, func(seen rtnl.Route) error {
			seen.Metric, seen.Table = 0, 0 // the metric is the kernel's choice, or laterMetric's
			missing = slices.DeleteFunc(missing, func(r rtnl.Route) bool { return r == seen && (table == 0 || isDefault(r)) })
			return enough(len(missing), &looked)
		})
		if err != nil {
			return nil, fmt.Errorf("looking for routes: %w", err)
		}
	}
	return missing, nil
}

// enough ends the reading of a list that is too long.
func enough(missing int, looked *int) error {
	*looked++
	switch {
	case *looked < Most:
		return nil
	case missing == 0:
		return rtnl.ErrStop
	}
	return fmt.Errorf("the pod has more than %d of them on this interface, and the agent does not look at the rest", Most)
}

// mostSeen is how many addresses of one interface Addresses returns.
const mostSeen = 16

// Addresses returns the addresses of an interface, but for link-local ones: for an agent that has lost its ledger. It leaves out what it cannot
// look at.
func Addresses(c *rtnl.Conn, index int) (all []netip.Prefix) {
	for _, ipv6 := range []bool{false, true} {
		looked := 0
		_ = c.EachAddress(index, ipv6, func(a rtnl.Address) error {
			if addr := a.Prefix.Addr(); !addr.IsLinkLocalUnicast() && len(all) < mostSeen {
				all = append(all, netip.PrefixFrom(addr, a.Prefix.Bits()))
			}
			if looked++; looked >= Most {
				return rtnl.ErrStop
			}
			return nil
		})
	}
	return all
}
