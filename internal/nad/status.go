package nad

import (
	"encoding/json"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// Attached is one attachment of a pod, as its status shows it.
type Attached struct {
	Network string           // Network.Label
	Default bool             // it is the pod's default network
	Result  *types100.Result // of ADD; nil: none is known
	Device  *nadv1.DeviceInfo
}

// Status writes the annotation KeyStatus, byte for byte as Multus 4.2 does: a list without blanks between
// entries, each of which is indented by 4 spaces.
func Status(attached []Attached) (string, *api.Error) {
	var entries []string
	for _, a := range attached {
		for _, status := range a.statuses() {
			raw, err := json.MarshalIndent(status, "", "    ")
			if err != nil {
				return "", cni.Errorf(cni.CodeInternal, "writing annotation "+KeyStatus, "%v", err)
			}
			entries = append(entries, string(raw))
		}
	}
	text := "[" + strings.Join(entries, ",") + "]"
	if len(text) > maxStatus {
		return "", cni.Errorf(cni.CodeConfig, "annotation "+KeyStatus+" is too long",
			"the results of %d networks make %d bytes; expected at most %d, which is what Kubernetes allows for all annotations", len(attached), len(text), maxStatus)
	}
	return text, nil
}

// statuses returns an entry for each interface in the pod, in the result's order. Without such an interface
// there is still one entry (specification, section 5.1.1), which then names no interface.
func (a *Attached) statuses() []nadv1.NetworkStatus {
	result := a.Result
	if result == nil {
		result = &types100.Result{}
	}
	base := nadv1.NetworkStatus{Name: a.Network, DNS: nadv1.DNS(result.DNS), DeviceInfo: a.Device, Gateway: gateways(result.Routes)}
	var all []nadv1.NetworkStatus
	entry := map[int]int{} // by the result's number of an interface
	for i, link := range result.Interfaces {
		if link == nil || link.Sandbox == "" { // an interface of the node
			continue
		}
		status := base
		status.Interface, status.Mac, status.Mtu = link.Name, link.Mac, link.Mtu
		entry[i] = len(all)
		all = append(all, status)
	}
	if len(all) == 0 {
		base.Default = a.Default
		base.IPs = unowned(result)
		return []nadv1.NetworkStatus{base}
	}
	for _, ip := range result.IPs {
		at, found := len(all)-1, ip != nil // Multus gives the last interface what names none
		if link := linkOf(ip); link >= 0 && len(result.Interfaces) > 1 {
			at, found = entry[link]
		}
		if found {
			all[at].IPs = append(all[at].IPs, ip.Address.IP.String())
		}
	}
	if a.Default {
		all[defaultEntry(result.IPs, entry)].Default = true
	}
	return all
}

// unowned returns the addresses that are no interface's of the node, of a result without interfaces in the
// pod. Multus counts those of a lone interface as the pod's.
func unowned(result *types100.Result) []string {
	var ips []string
	for _, ip := range result.IPs {
		if ip != nil && (linkOf(ip) < 0 || len(result.Interfaces) < 2) {
			ips = append(ips, ip.Address.IP.String())
		}
	}
	return ips
}

// defaultEntry returns the entry that is marked as the default one: the first that has an address with a
// gateway, or else the first.
func defaultEntry(ips []*types100.IPConfig, entry map[int]int) int {
	for _, ip := range ips {
		if at, found := entry[linkOf(ip)]; found && ip.Gateway != nil {
			return at
		}
	}
	return 0
}

// linkOf returns the number of an address's interface in the result; -1: the address names none.
func linkOf(ip *types100.IPConfig) int {
	if ip == nil || ip.Interface == nil {
		return -1
	}
	return max(*ip.Interface, -1)
}

// gateways returns the gateways of default routes. A route whose gateway is only implied has none to show:
// Multus writes "<nil>" for it.
func gateways(routes []*cnitypes.Route) []string {
	var all []string
	for _, route := range routes {
		if route == nil || route.GW == nil {
			continue
		}
		ones, _ := route.Dst.Mask.Size()
		if route.Dst.IP == nil || route.Dst.IP.IsUnspecified() && ones == 0 {
			all = append(all, route.GW.String())
		}
	}
	return all
}
