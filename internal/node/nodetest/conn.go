package nodetest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// conn is rtnetlink.
type conn struct{ *doors }

func (c conn) Close() error            { return nil }
func (c conn) UplinkMTU() (int, error) { return 1500, nil }

// Uses lists nobody: nobody else has addresses in memory.
func (c conn) Uses() ([]rtnl.Use, error) { return nil, nil }

func (c conn) Names(indices ...int) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, len(indices))
	for name, l := range c.links {
		for i, index := range indices {
			if l.Index == index {
				names[i] = name
			}
		}
	}
	return names, nil
}

func (c conn) Shaped() ([]rtnl.Qdisc, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rtnl.Qdisc
	for _, l := range c.links {
		if l.Shape != (rtnl.Rate{}) {
			all = append(all, rtnl.Qdisc{Index: l.Index, Kind: "tbf", Shape: l.Shape})
		}
	}
	return all, nil
}

func (c conn) Policed(indices ...int) (map[int]rtnl.Rate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	policed := map[int]rtnl.Rate{}
	for _, l := range c.links {
		if l.Police != (rtnl.Rate{}) && slices.Contains(indices, l.Index) {
			policed[l.Index] = l.Police
		}
	}
	return policed, nil
}

func (c conn) Veths(keep func(rtnl.Link) (bool, error)) ([]rtnl.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rtnl.Link
	for _, l := range c.links {
		ok, err := keep(l.show())
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, l.show())
		}
	}
	return all, nil
}

// Links lists veths alone: a node in memory has no other links.
func (c conn) Links(keep func(rtnl.Link) (bool, error)) ([]rtnl.Link, error) { return c.Veths(keep) }

func (c conn) Link(name string) (rtnl.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[name]; l != nil {
		return l.show(), nil
	}
	return rtnl.Link{}, fmt.Errorf("link %s: %w", name, kernel.ErrNotFound)
}

func (c conn) Routes(f rtnl.RouteFilter) ([]rtnl.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rtnl.Route
	for _, a := range slices.SortedFunc(maps.Keys(c.ways), netip.Addr.Compare) { // in the order of the kernel's dumps: one family, then the other
		l := c.ways[a]
		if !f.Unreachable && (f.Index == 0 || f.Index == l.Index) {
			all = append(all, rtnl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Index: l.Index})
		}
	}
	return all, nil
}

// AskAnew does nothing: nobody has a network card.
func (c conn) AskAnew([]netip.Addr) error { return nil }

// Hops says of all other nodes that they are on a link.
func (c conn) Hops(addrs []netip.Addr) []rtnl.Hop {
	hops := make([]rtnl.Hop, len(addrs))
	for i := range hops {
		hops[i] = rtnl.OnLink
	}
	return hops
}

// Reached returns the addresses that a host route leads to.
func (c conn) Reached(addrs []netip.Addr) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return c.ways[a] == nil })
}

func (c conn) Neighbours() ([]rtnl.Neighbour, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rtnl.Neighbour
	for a, l := range c.ways {
		all = append(all, rtnl.Neighbour{Addr: a, Index: l.Index, MAC: l.End.MAC})
	}
	return all, nil
}
