package lent

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/mode"
)

// Result is the base's, with the IPAM plugin's DNS settings, unless the configuration has its own. The addresses of a native base have the plugin's
// gateways, also those by which no route leads. Another base's gateways, routes and lengths of prefixes are its own: a pod's link leads to the node
// alone, which has the ways to all that the plugin's routes may name.
func (m *Mode) Result(o hold.Owner, r attachment.Record) (*types100.Result, error) {
	if m.Incomplete(o) {
		return nil, fmt.Errorf("attachment %s is incomplete: it has addresses of an IPAM plugin, and no interface yet: repeat ADD, or DEL it", o.ID)
	}
	res, err := m.Base.Result(o, r)
	s := lender(o)
	if err != nil || s == nil {
		return res, err
	}
	given, err := s.Parsed()
	if err != nil {
		return nil, err
	}
	if noDNS(res.DNS) {
		res.DNS = given.DNS
	}
	if _, native := m.Base.(Native); native {
		for _, ip := range res.IPs {
			ip.Gateway = gatewayIn(given.IPs, ip)
		}
	}
	return res, nil
}

// gatewayIn returns the gateway that a plugin has given with an address; nil: none.
func gatewayIn(given []*types100.IPConfig, of *types100.IPConfig) net.IP {
	for _, ip := range given {
		if g := specified(ip.Gateway); g.IsValid() && ip.Address.IP.Equal(of.Address.IP) {
			return g.AsSlice()
		}
	}
	return nil
}

func noDNS(d types.DNS) bool {
	return len(d.Nameservers)+len(d.Search)+len(d.Options)+len(d.Domain) == 0
}

// VerifyPod compares the inside of the pod with the plan, and has the IPAM plugin compare what it has given with what it knows (CNI 1.1,
// section 4, CHECK). An incomplete attachment has nothing to compare.
func (m *Mode) VerifyPod(ctx context.Context, o hold.Owner) error {
	return m.VerifyPodCeded(ctx, o, rtnl.Families{})
}

// VerifyPodCeded is VerifyPod for a pod whose default routes of some families lead through another network.
func (m *Mode) VerifyPodCeded(ctx context.Context, o hold.Owner, ceded rtnl.Families) error {
	var err error
	if c, cedes := m.Base.(mode.Ceder); cedes {
		err = c.VerifyPodCeded(ctx, o, ceded)
	} else {
		err = m.Base.VerifyPod(ctx, o)
	}
	if err != nil {
		return err
	}
	s := lender(o)
	if s == nil || m.Incomplete(o) {
		return nil
	}
	err = m.Check(ctx, &s.Spec)
	var said *types.Error
	if errors.As(err, &said) {
		return fmt.Errorf("%w: %w", hold.ErrChanged, err)
	}
	return err // nil, or nobody knows
}
