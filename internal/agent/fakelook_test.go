package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// What an agent that adopts asks of a node in memory.

func (c fakeConn) Link(name string) (rtnl.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[name]; l != nil {
		return l.show(), nil
	}
	return rtnl.Link{}, fmt.Errorf("link %s: %w", name, kernel.ErrNotFound)
}

func (c fakeConn) Routes(f rtnl.RouteFilter) ([]rtnl.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rtnl.Route
	for _, a := range slices.SortedFunc(maps.Keys(c.ways), netip.Addr.Compare) { // as a dump of one family, then the other
		l := c.ways[a]
		if !f.Unreachable && (f.Index == 0 || f.Index == l.index) {
			all = append(all, rtnl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Index: l.index})
		}
	}
	return all, nil
}

func (c fakeConn) Neighbours() ([]rtnl.Neighbour, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []rtnl.Neighbour
	for a, l := range c.ways {
		all = append(all, rtnl.Neighbour{Addr: a, Index: l.index, MAC: l.end.mac})
	}
	return all, nil
}
