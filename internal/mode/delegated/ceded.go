package delegated

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-net/berth/internal/cni/result"
	"github.com/berth-net/berth/internal/kernel/rtnl"
	"github.com/berth-net/berth/internal/kinds/delegate"
)

// without returns a spec whose result has no default routes of ceded families.
func without(s *delegate.Spec, ceded rtnl.Families) (*delegate.Spec, error) {
	if ceded == (rtnl.Families{}) || s.Result == "" {
		return s, nil
	}
	r, err := s.Parsed()
	if err != nil {
		return nil, err
	}
	r.Routes = slices.DeleteFunc(r.Routes, func(route *types.Route) bool {
		if route == nil {
			return false
		}
		ones, _ := route.Dst.Mask.Size()
		to, ok := netip.AddrFromSlice(route.Dst.IP)
		return ok && ones == 0 && ceded.Has(to.Unmap())
	})
	raw, bad := result.Encode(r, s.Version)
	if bad != nil {
		return nil, fmt.Errorf("the result of network %s without default routes: %w", s.Network, bad)
	}
	less := *s
	less.Result = string(raw)
	return &less, nil
}
