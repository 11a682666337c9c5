package noderoute

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// list are the instance's routes by a gateway, and those beneath them.
type list struct {
	routes []rtnl.Route
	tunnel int // the index of the tunnel's device; 0: there is none
}

func (r *Routes) list() (all list, err error) {
	if all.tunnel, err = r.tunnel(); err != nil {
		return all, err
	}
	all.routes, err = r.Conn.Routes(rtnl.RouteFilter{})
	if err == nil {
		var closed []rtnl.Route
		closed, err = r.Conn.Routes(rtnl.RouteFilter{Unreachable: true})
		all.routes = append(all.routes, closed...)
	}
	if err != nil {
		err = fmt.Errorf("looking at the routes to other nodes: %w", err)
	}
	all.routes = slices.DeleteFunc(all.routes, func(route rtnl.Route) bool {
		way := route.Metric == r.Metric && route.Gateway.IsValid()
		return !way && !(route.Unreachable && route.Metric == r.metric(true))
	})
	return all, err
}

// has reports whether there is a spec's route.
func (l list) has(s *Spec) bool {
	return slices.ContainsFunc(l.routes, func(route rtnl.Route) bool { return s.is(route, l.tunnel) })
}

// at returns the routes that have the specs' places; zero: there is none or, with an error, nobody can tell. It looks each up,
// which takes the kernel the same time however many nodes the cluster has. It walks all routes only if the kernel answers with
// another one, such as somebody's narrower route, or with none: the kernel shows nobody an unreachable route.
func (r *Routes) at(specs ...*Spec) (routes []rtnl.Route, err error) {
	routes = make([]rtnl.Route, len(specs))
	rs := make([]rtnl.Request, len(specs))
	for i, s := range specs {
		rs[i] = rtnl.MatchRoute(s.CIDR.Addr(), &routes[i])
	}
	r.Conn.Each(rs...)
	var unseen []int
	for i, s := range specs {
		if !s.placed(routes[i]) {
			routes[i], unseen = rtnl.Route{}, append(unseen, i)
		}
	}
	if len(unseen) == 0 {
		return routes, nil
	}
	all, err := r.list()
	for _, i := range unseen {
		if n := slices.IndexFunc(all.routes, specs[i].placed); n >= 0 {
			routes[i] = all.routes[n]
		}
	}
	return routes, err
}

// tunnel returns the index of the tunnel's device; 0: there is none.
func (r *Routes) tunnel() (index int, err error) {
	var l rtnl.Link
	err = r.Conn.Do(rtnl.GetLink(r.Tunnel, &l))
	if errors.Is(err, kernel.ErrNotFound) {
		err = nil
	}
	return l.Index, err
}

// placed reports whether a route has the place of a spec's. The kernel has no two routes of one place.
func (s *Spec) placed(route rtnl.Route) bool { return route.Dst == s.CIDR && route.Metric == s.Metric }

// is reports whether a route is a spec's. tunnel is the index of the tunnel's device; 0: there is none.
func (s *Spec) is(route rtnl.Route, tunnel int) bool {
	if !s.placed(route) || s.Closed {
		return s.placed(route) && route.Unreachable
	}
	return route.Gateway == s.Via && (route.Index == tunnel) == s.Tunnel
}
