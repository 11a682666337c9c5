package mode

import (
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/ipam"
	"github.com/berth-net/berth/internal/kinds/flows"
	"github.com/berth-net/berth/internal/kinds/inside"
)

// SegmentDefaults returns a pod's default routes by the gateways of a segment.
func SegmentDefaults(on *ipam.Segment, addrs []netip.Addr) (all []inside.Route) {
	for _, g := range Gateways(on, addrs) {
		all = append(all, inside.Route{Dst: Everything(g), Gateway: g})
	}
	return all
}

// OfPool returns what a pool on a segment gives with some of its addresses: these, and default routes by the segment's gateways. on is nil if the
// pool has lost its segment since Fit.
func OfPool(pool string, on *ipam.Segment, addrs []netip.Addr) (Given, error) {
	if on == nil {
		on = &ipam.Segment{}
	}
	prefixes, ok := OnSegment(on, addrs)
	if !ok {
		return Given{}, cni.Errorf(cni.CodeTryAgain, "the pool has changed", "pool %s had another segment a moment ago", pool)
	}
	return Given{Whose: "pool " + pool, Addresses: prefixes, Routes: SegmentDefaults(on, addrs)}, nil
}

// SegmentOwner returns the owner of an attachment whose interface, s, is on a segment. When it ends, the agent makes the kernel forget the
// connections of its addresses.
func SegmentOwner(id hold.ID, r attachment.Record, s hold.Spec, addrs []netip.Addr) hold.Owner {
	o := hold.Owner{ID: id, Meta: r.Encode()}
	for _, a := range addrs {
		o.Names = append(o.Names, ipam.Name(a))
	}
	if len(addrs) > 0 {
		o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: &flows.Spec{Addresses: addrs}})
	}
	o.Holds = append(o.Holds, hold.Hold{Owner: id, Spec: s})
	return o
}

// AddSegment adds addresses and routes of a pod on a segment to its CNI result. face is the place of the pod's interface among the result's
// interfaces.
func AddSegment(res *types100.Result, addrs []netip.Prefix, routes []inside.Route, face int) {
	res.IPs = IPs(addrs, face)
	for _, route := range routes {
		for i, a := range addrs {
			if route.Dst.Bits() == 0 && route.Gateway.IsValid() && a.Addr().Is4() == route.Gateway.Is4() {
				res.IPs[i].Gateway = route.Gateway.AsSlice()
			}
		}
		res.Routes = append(res.Routes, &types.Route{Dst: IPNet(route.Dst), GW: route.Gateway.AsSlice()})
	}
}

// Believe returns, of the addresses that pods' own interfaces say they have, those that are the pods', in the same places. A pod can give its
// interface any address: Berth believes none that is taken, none that two pods claim, and none of a family of which the pod has two
// addresses of segments.
func Believe(said [][]netip.Prefix, taken map[netip.Addr]bool, ofSegment func(netip.Addr) bool) [][]netip.Prefix {
	claims := map[netip.Addr]int{}
	for _, addrs := range said {
		for _, a := range addrs {
			claims[a.Addr()]++
		}
	}
	all := make([][]netip.Prefix, len(said))
	for i, addrs := range said {
		for _, a := range addrs {
			twice := slices.ContainsFunc(addrs, func(b netip.Prefix) bool { return b != a && b.Addr().Is4() == a.Addr().Is4() && ofSegment(b.Addr()) })
			if !twice && !taken[a.Addr()] && claims[a.Addr()] == 1 && ofSegment(a.Addr()) {
				all[i] = append(all[i], a)
			}
		}
	}
	return all
}
