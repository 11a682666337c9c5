package mode

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/attachment"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/cni/result"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// EncodeResult returns the CNI result of an attachment in the version of its configuration.
func EncodeResult(m Mode, e *attachment.Entry, c *netconf.Conf) (json.RawMessage, error) {
	res, err := m.Result(e.Owner, e.Record)
	if err != nil {
		return nil, err
	}
	raw, bad := result.Encode(res, c.Version)
	if bad != nil {
		return nil, bad
	}
	return raw, nil
}

// ParseResult reads the prevResult of a configuration.
func ParseResult(c *netconf.Conf) (*types100.Result, error) {
	prev, bad := result.Parse(c.PrevResult, c.Version)
	if bad != nil {
		return nil, bad
	}
	return prev, nil
}

// KeepResult returns the prevResult of a configuration as a record keeps it: in the newest version.
func KeepResult(c *netconf.Conf) (json.RawMessage, error) {
	prev, err := ParseResult(c)
	if err != nil {
		return nil, err
	}
	raw, bad := result.Encode(prev, types100.ImplementedSpecVersion)
	if bad != nil {
		return nil, bad
	}
	return raw, nil
}

// Against returns what a prevResult lacks of the result that follows from the record.
func Against(m Mode, e *attachment.Entry, prev *types100.Result) []string {
	want, err := m.Result(e.Owner, e.Record)
	if err != nil {
		return []string{err.Error()}
	}
	var differ []string
	for _, ip := range want.IPs {
		if !hasAddress(prev, ip) {
			differ = append(differ, fmt.Sprintf("prevResult lacks the address %s", ip.Address.String()))
		}
	}
	for _, i := range want.Interfaces {
		if len(prev.Interfaces) > 0 && !hasInterface(prev, i) { // results of CNI 0.1.0 and 0.2.0 have no interfaces
			differ = append(differ, fmt.Sprintf("prevResult lacks the interface %s (%s)", i.Name, i.Mac))
		}
	}
	for _, r := range want.Routes {
		has := func(have *types.Route) bool { return have.Dst.String() == r.Dst.String() && have.GW.Equal(r.GW) }
		if !slices.ContainsFunc(prev.Routes, has) {
			differ = append(differ, fmt.Sprintf("prevResult lacks the route %s via %s", r.Dst.String(), r.GW))
		}
	}
	return differ
}

func hasAddress(res *types100.Result, want *types100.IPConfig) bool {
	return slices.ContainsFunc(res.IPs, func(ip *types100.IPConfig) bool { return ip.Address.IP.Equal(want.Address.IP) })
}

func hasInterface(res *types100.Result, want *types100.Interface) bool {
	return slices.ContainsFunc(res.Interfaces, func(i *types100.Interface) bool {
		return i.Name == want.Name && strings.EqualFold(i.Mac, want.Mac) && (i.Sandbox == "") == (want.Sandbox == "")
	})
}
