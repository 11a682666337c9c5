// Package poolroute is the kind of a pool's unreachable route, which answers packets to
// those addresses of the pool that no pod has. Without it a packet to a pod that is gone
// would take the node's default route. The packet would also leave entries of address translation
// behind, which would then catch packets of the next pod with the same address.
package poolroute

import (
	"cmp"
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
const KindName = "poolroute"

// batch is how many routes one Release takes.
const batch = 32

// Spec is the route of one CIDR. The metric is the instance's own (stamp.MetricOf), so that an
// agent's route can stand beside another agent's route to the same CIDR.
type Spec struct {
	CIDR   netip.Prefix `json:"cidr"`   // masked
	Metric uint32       `json:"metric"` // not 0
	// Local says that this is no pool's route: the node itself receives what goes there. The
	// agent has one such route for each family (nft.Stand4).
	Local bool `json:"local,omitempty"`
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	if s.Local {
		return fmt.Sprintf("route local %s metric %d", s.CIDR, s.Metric)
	}
	return fmt.Sprintf("route unreachable %s metric %d", s.CIDR, s.Metric)
}

// route returns the spec as a route.
//
//	ip route add unreachable 10.88.0.0/16 proto 98 metric N
//	ip route add local 169.254.255.1 dev lo proto 98 metric N
func (s *Spec) route() rtnl.Route {
	return rtnl.Route{Dst: s.CIDR, Unreachable: !s.Local, Local: s.Local, Metric: s.Metric}
}

// Options of New.
type Options struct {
	Conn   *rtnl.Conn // to the node's network namespace
	Metric uint32     // the instance's
}

// Routes makes, checks and deletes the pool routes of an instance.
type Routes struct{ Options }

// New returns the pool routes of an instance.
func New(o Options) *Routes { return &Routes{o} }

// Kind returns the kind of these routes.
func (r *Routes) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		Waits:   true, // the pods that have addresses of the CIDR
		New:     func() hold.Spec { return new(Spec) },
		Acquire: r.acquire,
		Verify:  r.verify,
		Release: r.release,
		Batch:   batch,
		Find:    r.find,
	}
}

// spec returns a hold's spec. It refuses a spec with another instance's metric, or with a
// CIDR that is not valid and masked.
func (r *Routes) spec(h hold.Hold) (*Spec, error) {
	s, ok := h.Spec.(*Spec)
	switch {
	case !ok:
		return nil, fmt.Errorf("a hold of kind %s is not a pool route", h.Spec.Kind())
	case s.Metric != r.Metric:
		return nil, fmt.Errorf("%s does not belong to this instance, whose metric is %d", s, r.Metric)
	case !s.CIDR.IsValid() || s.CIDR != s.CIDR.Masked():
		return nil, fmt.Errorf("%s is not a CIDR", s.CIDR)
	}
	return s, nil
}

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

func (r *Routes) release(_ context.Context, hs []hold.Hold) []error {
	errs, routes := make([]error, len(hs)), make([]rtnl.Route, len(hs)) // a zero route: there is nothing to delete
	for i, h := range hs {
		s, err := r.spec(h)
		if errs[i] = err; err == nil {
			routes[i] = s.route()
		}
	}
	for i, err := range r.Conn.DelRoutes(routes) {
		errs[i] = cmp.Or(errs[i], err)
	}
	return errs
}

// find returns the instance's routes, as holds without an owner: a route does not say which owner has
// it.
func (r *Routes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	routes, err := r.list()
	holds := make([]hold.Hold, len(routes))
	for i, route := range routes {
		holds[i].Spec = &Spec{CIDR: route.Dst, Metric: route.Metric, Local: route.Local}
	}
	return holds, err
}

// list returns the instance's routes in the kernel. With an error it may return only some of the
// routes.
func (r *Routes) list() ([]rtnl.Route, error) {
	routes, err := r.Conn.Routes(rtnl.RouteFilter{Unreachable: true})
	if err == nil {
		var local []rtnl.Route
		local, err = r.Conn.Routes(rtnl.RouteFilter{Local: true})
		routes = append(routes, local...)
	}
	if err != nil {
		err = fmt.Errorf("looking at pool routes: %w", err)
	}
	return slices.DeleteFunc(routes, func(route rtnl.Route) bool { return route.Metric != r.Metric }), err
}
