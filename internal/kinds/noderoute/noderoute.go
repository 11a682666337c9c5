// Package noderoute is the kind of hold that is a route to another node's pods: packets to a CIDR of
// that node's pods go to that node's address, which must be on a link of this node, or through the tunnel to that
// node (packages vxlan and wireguard). The route is in the node's main table, with the agent's protocol and the instance's metric. A
// packet to a pod of this node takes no such route, because the pool's unreachable route and the pods' host routes are of
// other CIDRs.
package noderoute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/stamp"
)

// KindName is the name of the kind.
const KindName = "noderoute"

// batch is how many routes one Release deletes. Each takes one message.
const batch = 32

// Spec is a route to a CIDR of another node's pods.
type Spec struct {
	CIDR   netip.Prefix `json:"cidr"`   // masked
	Via    netip.Addr   `json:"via"`    // the node's address or, through the tunnel, the gateway that the tunnel has for it; of the CIDR's family
	Metric uint32       `json:"metric"` // the instance's; not 0
	Tunnel bool         `json:"tunnel,omitempty"`
	// Closed is set for the unreachable route that lies beneath the way (stamp.Beneath): without the way, packets to the CIDR
	// go nowhere, and not where the node's other routes lead. Such a spec has no Via.
	Closed bool `json:"closed,omitempty"`
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

func (s *Spec) String() string {
	if s.Closed {
		return fmt.Sprintf("route unreachable %s metric %d", s.CIDR, s.Metric)
	}
	how := ""
	if s.Tunnel {
		how = " through the tunnel"
	}
	return fmt.Sprintf("route %s via %s%s metric %d", s.CIDR, s.Via, how, s.Metric)
}

// route returns the route as rtnl has it. tunnel is the index of the tunnel's device.
//
//	ip route add 10.244.1.0/24 via 192.0.2.11 [dev DEV onlink] proto 98 metric N
//	ip route add unreachable 10.244.1.0/24 proto 98 metric N
func (s *Spec) route(tunnel int) rtnl.Route {
	if s.Closed {
		return rtnl.Route{Dst: s.CIDR, Unreachable: true, Metric: s.Metric}
	}
	r := rtnl.Route{Dst: s.CIDR, Gateway: s.Via, Metric: s.Metric}
	if s.Tunnel {
		r.Index = tunnel
	}
	return r
}

// Options are what the kind needs.
type Options struct {
	Conn   *rtnl.Conn // to the node's network namespace
	Metric uint32     // the instance's
	Tunnel string     // the name of the tunnel's device
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
	case s.Metric != r.metric(s.Closed):
		return nil, fmt.Errorf("%s does not belong to this instance, whose metric is %d", s, r.metric(s.Closed))
	case !s.CIDR.IsValid() || s.CIDR != s.CIDR.Masked():
		return nil, fmt.Errorf("%s is not a CIDR", s.CIDR)
	case s.Closed:
		return s, nil
	case !s.Via.IsValid() || s.Via.Is4() != s.CIDR.Addr().Is4():
		return nil, fmt.Errorf("%s is not a gateway of the family of %s", s.Via, s.CIDR)
	}
	return s, nil
}

// metric returns the metric of the instance's ways, or of the routes beneath them.
func (r *Routes) metric(closed bool) uint32 {
	if closed {
		return stamp.Beneath(r.Metric)
	}
	return r.Metric
}

// acquire adds the route. If the instance has a route to the CIDR by another gateway, acquire puts the new
// route into its place, so that no packet meets a moment without a route: the owner changes, and gives back
// the former hold when it has the new one.
func (r *Routes) acquire(_ context.Context, h hold.Hold) error {
	s, err := r.spec(h)
	if err != nil {
		return err
	}
	tunnel, err := r.tunnel()
	switch {
	case err != nil:
		return err
	case s.Tunnel && tunnel == 0:
		return fmt.Errorf("%s: there is no device %s: %w", s, r.Tunnel, kernel.ErrNotFound)
	}
	err = r.Conn.Do(rtnl.AddRoute(s.route(tunnel)))
	if !errors.Is(err, kernel.ErrExists) {
		return err
	}
	there, seeing := r.at(s)
	switch {
	case s.is(there[0], tunnel):
		return nil
	case s.placed(there[0]):
		return r.Conn.Do(rtnl.ReplaceRoute(s.route(tunnel)))
	case seeing != nil:
		return seeing
	}
	return fmt.Errorf("%w: %w", hold.ErrForeign, err)
}

func (r *Routes) verify(_ context.Context, _ *hold.Look, hs []hold.Hold) []error {
	errs := make([]error, len(hs))
	all, seeing := r.list()
	for i, h := range hs {
		s, err := r.spec(h)
		switch {
		case err != nil:
			errs[i] = err
		case all.has(s):
		case seeing != nil:
			errs[i] = seeing
		default:
			errs[i] = fmt.Errorf("%s: %w", s, hold.ErrGone)
		}
	}
	return errs
}

// release deletes the routes. A route to the CIDR by another gateway, or one that has come to go through the tunnel, or to
// go through it no more, is not the hold's, and stays.
func (r *Routes) release(_ context.Context, hs []hold.Hold) []error {
	errs, routes := make([]error, len(hs)), make([]rtnl.Route, len(hs)) // a zero route: there is nothing to delete
	tunnel, seeing := r.tunnel()
	var native []*Spec
	var of []int // whose holds native are
	for i, h := range hs {
		s, err := r.spec(h)
		switch err = errors.Join(err, seeing); {
		case err != nil:
			errs[i] = err
		case s.Tunnel && tunnel == 0: // the kernel deleted the route with the device
		case s.Tunnel || s.Closed || tunnel == 0:
			routes[i] = s.route(tunnel)
		default: // a message that names no link would delete a route by the same gateway through the tunnel, too
			native, of = append(native, s), append(of, i)
		}
	}
	there, seeing := r.at(native...)
	for n, s := range native {
		if s.is(there[n], tunnel) {
			routes[of[n]] = there[n]
		} else if !s.placed(there[n]) {
			errs[of[n]] = seeing
		}
	}
	for i, err := range r.Conn.DelRoutes(routes) {
		errs[i] = cmp.Or(errs[i], err)
	}
	return errs
}

// find returns the instance's routes. A route cannot say who owns it.
func (r *Routes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	all, err := r.list()
	holds := make([]hold.Hold, len(all.routes))
	for i, route := range all.routes {
		if route.Unreachable {
			holds[i].Spec = &Spec{CIDR: route.Dst, Metric: route.Metric, Closed: true}
			continue
		}
		holds[i].Spec = &Spec{CIDR: route.Dst, Via: route.Gateway, Metric: route.Metric, Tunnel: route.Index == all.tunnel}
	}
	return holds, err
}
