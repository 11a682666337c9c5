package ways

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/noderoute"
)

// way is where packets to a CIDR of another node's pods go, by a metric.
type way struct {
	cidr   netip.Prefix
	metric uint32
}

func wayOf(s *noderoute.Spec) way { return way{s.CIDR, s.Metric} }

// gateway is where such a way leads. Zero: the way is somebody else's.
type gateway struct {
	via    netip.Addr
	tunnel bool
}

func gatewayOf(s *noderoute.Spec) gateway { return gateway{s.Via, s.Tunnel} }

func (k Routes) Kind() hold.Kind {
	return hold.Kind{
		Stage:   hold.Use,
		New:     func() hold.Spec { return new(noderoute.Spec) },
		Acquire: k.acquire,
		Verify:  hold.VerifyEach(k.verify),
		Release: hold.Each(k.release),
		Batch:   32,
		Find:    k.find,
	}
}

func (k Routes) acquire(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*noderoute.Spec)
	return k.Step("route", "add "+s.String(), func() error {
		if to, there := k.routes[wayOf(s)]; there && !to.via.IsValid() {
			return fmt.Errorf("%s: %w", s, hold.ErrForeign)
		}
		if s.Tunnel && k.tunnel == nil {
			return fmt.Errorf("%s: there is no tunnel", s)
		}
		k.routes[wayOf(s)] = gatewayOf(s)
		return nil
	})
}

func (k Routes) verify(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*noderoute.Spec)
	k.Lock()
	defer k.Unlock()
	if k.routes[wayOf(s)] != gatewayOf(s) {
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	}
	return nil
}

func (k Routes) release(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*noderoute.Spec)
	return k.Step("route", "delete "+s.String(), func() error {
		if k.routes[wayOf(s)] == gatewayOf(s) {
			delete(k.routes, wayOf(s))
		}
		return nil
	})
}

func (k Routes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	k.Lock()
	defer k.Unlock()
	var all []hold.Hold
	for w, to := range k.routes {
		if to.via.IsValid() && w.metric == k.Metric {
			all = append(all, hold.Hold{Spec: &noderoute.Spec{CIDR: w.cidr, Via: to.via, Metric: w.metric, Tunnel: to.tunnel}})
		}
	}
	return all, nil
}
