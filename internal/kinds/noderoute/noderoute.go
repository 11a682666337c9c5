// Package noderoute is the kind of hold that is a route to another node's pods: packets to a CIDR of
// that node's pods go to that node's address, which must be on a link of this node. The route is in the
// node's main table, with the agent's protocol and the instance's metric. A packet to a pod of this node
// takes no such route, because the pool's unreachable route and the pods' host routes are of other CIDRs.
package noderoute

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// KindName is the name of the kind.
const KindName = "noderoute"

// batch is how many routes one Release deletes. Each takes one message.
const batch = 32

// Spec is a route to a CIDR of another node's pods.
type Spec struct {
	CIDR   netip.Prefix `json:"cidr"`   // masked
	Via    netip.Addr   `json:"via"`    // the node's address, of the CIDR's family
	Metric uint32       `json:"metric"` // the instance's; not 0
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	return fmt.Sprintf("route %s via %s metric %d", s.CIDR, s.Via, s.Metric)
}

// route returns the route as rtnl has it.
//
//	ip route add 10.244.1.0/24 via 192.0.2.11 proto 98 metric N
func (s *Spec) route() rtnl.Route {
	return rtnl.Route{Dst: s.CIDR, Gateway: s.Via, Metric: s.Metric}
}

// Options are what the kind needs.
type Options struct {
	Conn   *rtnl.Conn // to the node's network namespace
	Metric uint32     // the instance's
}

// Routes makes and deletes the routes.
type Routes struct{ Options }

// New returns the routes of an instance.
func New(o Options) *Routes { return &Routes{o} }

// Kind returns the kind of hold.
func (r *Routes) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(Spec) },
		Acquire: r.acquire,
		Verify:  r.verify,
		Release: r.release,
		Batch:   batch,
		Find:    r.find,
	}
}

// spec returns a hold's spec, and refuses a spec that is no route of this instance.
func (r *Routes) spec(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	switch {
	case !ok:
		return nil, fmt.Errorf("a hold of kind %s is not a route to another node", h.Spec.Kind())
	case s.Metric != r.Metric:
		return nil, fmt.Errorf("%s does not belong to this instance, whose metric is %d", s, r.Metric)
	case !s.CIDR.IsValid() || s.CIDR != s.CIDR.Masked():
		return nil, fmt.Errorf("%s is not a CIDR", s.CIDR)
	case !s.Via.IsValid() || s.Via.Is4() != s.CIDR.Addr().Is4():
		return nil, fmt.Errorf("%s is not a gateway of the family of %s", s.Via, s.CIDR)
	}
	return s, nil
}

// acquire adds the route. If the instance has a route to the CIDR by another gateway, acquire puts the new
// route into its place, so that no packet meets a moment without a route: the owner changes, and gives back
// the former hold when it has the new one.
func (r *Routes) acquire(_ context.Context, h hold.Hold) error {
	s, err := r.spec(h)
	if err != nil {
		return err
	}
	err = r.Conn.Do(rtnl.AddRoute(s.route()))
	if !errors.Is(err, kernel.ErrExists) {
		return err
	}
	routes, seeing := r.list()
	switch {
	case slices.Contains(routes, s.route()):
		return nil
	case slices.ContainsFunc(routes, func(route rtnl.Route) bool { return route.Dst == s.CIDR }):
		return r.Conn.Do(rtnl.ReplaceRoute(s.route()))
	case seeing != nil:
		return seeing
	}
	return fmt.Errorf("%w: %w", hold.ErrForeign, err)
}

func (r *Routes) verify(_ context.Context, _ *hold.Look, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	routes, seeing := r.list()
	for i, h := range hs {
		s, err := r.spec(h)
		switch {
		case err != nil:
			errs[i] = err
		case slices.Contains(routes, s.route()):
		case seeing != nil:
			errs[i] = seeing
		default:
			errs[i] = fmt.Errorf("%s: %w", s, hold.ErrGone)
		}
	}
	return errs
}

// release deletes the routes. A route to the CIDR by another gateway is not the hold's, and stays.
func (r *Routes) release(_ context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	for i, h := range hs {
		s, err := r.spec(h)
		if err == nil {
			err = r.Conn.Do(rtnl.DelRoute(s.route()))
		}
		if !errors.Is(err, kernel.ErrNotFound) {
			errs[i] = err
		}
	}
	return errs
}

// find returns the instance's routes. A route cannot say who owns it.
func (r *Routes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	routes, err := r.list()
	holds := make([]hold.Hold, len(routes))
	for i, route := range routes {
		holds[i].Spec = &Spec{CIDR: route.Dst, Via: route.Gateway, Metric: route.Metric}
	}
	return holds, err
}

// list returns the instance's routes by a gateway, without the links that they lead over.
func (r *Routes) list() ([]rtnl.Route, error) {
	routes, err := r.Conn.Routes(rtnl.RouteFilter{})
	if err != nil {
		err = fmt.Errorf("looking at the routes to other nodes: %w", err)
	}
	routes = slices.DeleteFunc(routes, func(route rtnl.Route) bool {
		return route.Metric != r.Metric || !route.Gateway.IsValid()
	})
	for i := range routes {
		routes[i].Index = 0
	}
	return routes, err
}
