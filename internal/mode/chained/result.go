package chained

import (
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/result"
	"github.com/berth-net/berth/internal/hold"
)

// Result is the prevResult of the ADD.
func (*Chained) Result(o hold.Owner, _ attachment.Record) (*types100.Result, error) { return prevOf(o) }

// prevOf returns the prevResult of an attachment's ADD, from its record.
func prevOf(o hold.Owner) (*types100.Result, error) {
	r, ok, err := attachment.Decode(o)
	if err != nil {
		return nil, err
	}
	if !ok || len(r.PrevResult) == 0 {
		return nil, fmt.Errorf("attachment %s: its record has no prevResult", o.ID)
	}
	return parse(r)
}

// parse reads the prevResult of a record.
func parse(r attachment.Record) (*types100.Result, error) {
	prev, bad := result.Parse(r.PrevResult, types100.ImplementedSpecVersion)
	if bad != nil {
		return nil, errors.New(bad.Error())
	}
	return prev, nil
}

// interfaceOf returns the index of the pod's interface in a result; -1: the result has none of that name.
func interfaceOf(prev *types100.Result, ifname string) int {
	for i, face := range prev.Interfaces {
		if face.Name == ifname && face.Sandbox != "" {
			return i
		}
	}
	return -1
}

// addresses returns the addresses of the pod's interface: those that a result gives to it, or to no interface.
func addresses(prev *types100.Result, ifname string) (all []netip.Addr) {
	at := interfaceOf(prev, ifname)
	for _, ip := range prev.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok && (ip.Interface == nil || *ip.Interface == at) {
			all = append(all, a.Unmap())
		}
	}
	return all
}
