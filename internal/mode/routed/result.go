package routed

import (
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kinds/link"
	"github.com/berth-net/berth/internal/mode"
)

// Result returns the CNI result of an attachment: a function of its record.
func (*Routed) Result(o hold.Owner, r attachment.Record) (*types100.Result, error) {
	_, spec, err := linkOf(o)
	if err != nil {
		return nil, err
	}
	podEnd := 1 // index of the pod's end in Interfaces
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: spec.Name, Mac: spec.HostMAC, Mtu: spec.MTU},
			{Name: spec.Ifname, Mac: spec.MAC, Mtu: spec.MTU, Sandbox: r.Netns.Path},
		},
		DNS: r.DNS,
	}
	for _, a := range spec.Addresses {
		gw, dst := link.Gateway4, netip.MustParsePrefix("0.0.0.0/0")
		if a.Is6() {
			gw, dst = link.Gateway6, netip.MustParsePrefix("::/0")
		}
		res.IPs = append(res.IPs, &types100.IPConfig{
			Interface: &podEnd,
			Address:   mode.IPNet(netip.PrefixFrom(a, a.BitLen())),
			Gateway:   gw.AsSlice(),
		})
		res.Routes = append(res.Routes, &types.Route{Dst: mode.IPNet(dst), GW: gw.AsSlice()})
	}
	return res, nil
}
