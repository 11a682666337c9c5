// Package poolroute is the kind of the unreachable route that an agent keeps
// for each CIDR of its pools. Without it packets for a pod that is gone leave
// by the default route, and what NAT writes down for them there reaches the
// next pod with the address.
package poolroute

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
)

// Name is the name of the kind.
const Name = "poolroute"

// Spec is an unreachable route.
type Spec struct {
	CIDR   netip.Prefix `json:"cidr"`
	Metric uint32       `json:"metric"` // the instance's own, by rtnl.MetricOf
}

// Kind returns "poolroute".
func (s *Spec) Kind() string { return Name }

// String is the route in ip's words.
func (s *Spec) String() string { return s.route().String() }

func (s *Spec) route() rtnl.Route {
	return rtnl.Route{Dst: s.CIDR, Unreachable: true, Metric: s.Metric}
}

// Routes makes and removes the pool routes of an instance.
type Routes struct {
	conn   *rtnl.Conn
	metric uint32
}

// New returns the pool routes of the instance that has this metric.
func New(conn *rtnl.Conn, metric uint32) *Routes { return &Routes{conn, metric} }

// Spec returns the spec of a CIDR's route.
func (r *Routes) Spec(cidr netip.Prefix) *Spec { return &Spec{CIDR: cidr, Metric: r.metric} }

// Kind returns the kind, for an agent's list.
func (r *Routes) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return &Spec{} },
		Acquire: r.acquire,
		Verify:  r.verify,
		Release: hold.Each(r.release),
		Find:    r.find,
	}
}

// acquire adds the route. That it exists means that it is ours: no other
// instance has the protocol and the metric.
func (r *Routes) acquire(_ context.Context, h hold.Hold) error {
	err := r.conn.Do(rtnl.AddRoute(h.Spec.(*Spec).route()))
	if errors.Is(err, kernel.ErrExists) {
		return r.own(h)
	}
	return err
}

// own says whether the route that is there is the one of the hold, and not
// somebody else's of the same destination and metric.
func (r *Routes) own(h hold.Hold) error {
	if err := r.verify(context.Background(), []hold.Hold{h})[0]; err != nil {
		return fmt.Errorf("%s: %w", h.Spec, hold.ErrForeign)
	}
	return nil
}

// verify lists the instance's routes once.
func (r *Routes) verify(_ context.Context, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	routes, err := r.conn.Routes(rtnl.RouteFilter{Unreachable: true})
	there := map[string]bool{}
	for _, route := range routes {
		there[route.String()] = true
	}
	for i, h := range hs {
		switch {
		case err != nil:
			errs[i] = err
		case !there[h.Spec.String()]:
			errs[i] = fmt.Errorf("route %s: %w", h.Spec, hold.ErrGone)
		}
	}
	return errs
}

func (r *Routes) release(_ context.Context, h hold.Hold) error {
	err := r.conn.Do(rtnl.DelRoute(h.Spec.(*Spec).route()))
	if errors.Is(err, kernel.ErrNotFound) {
		return nil
	}
	return err
}

// find returns all unreachable routes with the instance's metric.
func (r *Routes) find(context.Context) ([]hold.Hold, error) {
	routes, err := r.conn.Routes(rtnl.RouteFilter{Unreachable: true})
	var holds []hold.Hold
	for _, route := range routes {
		if route.Metric == r.metric {
			holds = append(holds, hold.Hold{Spec: &Spec{CIDR: route.Dst, Metric: route.Metric}})
		}
	}
	return holds, err
}
