package nodetest

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/noderoute"
)

// nodeRoutes is the noderoute kind.
type nodeRoutes struct {
	*doors
	metric uint32
}

// nodeWay is where packets to a CIDR of another node's pods go, by a metric.
type nodeWay struct {
	cidr   netip.Prefix
	metric uint32
}

func wayOf(s *noderoute.Spec) nodeWay { return nodeWay{s.CIDR, s.Metric} }

// gateway is where such a way leads. Zero: the way is somebody else's.
type gateway struct {
	via    netip.Addr
	tunnel bool
}

func gatewayOf(s *noderoute.Spec) gateway { return gateway{s.Via, s.Tunnel} }

func (k nodeRoutes) Kind() hold.Kind {
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

func (k nodeRoutes) acquire(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*noderoute.Spec)
	return k.step("route", "add "+s.String(), func() error {
		if to, there := k.nodeWays[wayOf(s)]; there && !to.via.IsValid() {
			return fmt.Errorf("%s: %w", s, hold.ErrForeign)
		}
		if s.Tunnel && k.tunnel == nil {
			return fmt.Errorf("%s: there is no tunnel", s)
		}
		k.nodeWays[wayOf(s)] = gatewayOf(s)
		return nil
	})
}

func (k nodeRoutes) verify(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*noderoute.Spec)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.nodeWays[wayOf(s)] != gatewayOf(s) {
		return fmt.Errorf("%s: %w", s, hold.ErrGone)
	}
	return nil
}

func (k nodeRoutes) release(_ context.Context, h hold.Hold) error {
	s := h.Spec.(*noderoute.Spec)
	return k.step("route", "delete "+s.String(), func() error {
		if k.nodeWays[wayOf(s)] == gatewayOf(s) {
			delete(k.nodeWays, wayOf(s))
		}
		return nil
	})
}

func (k nodeRoutes) find(context.Context, *hold.Look) ([]hold.Hold, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []hold.Hold
	for w, to := range k.nodeWays {
		if to.via.IsValid() && w.metric == k.metric {
			all = append(all, hold.Hold{Spec: &noderoute.Spec{CIDR: w.cidr, Via: to.via, Metric: w.metric, Tunnel: to.tunnel}})
		}
	}
	return all, nil
}
