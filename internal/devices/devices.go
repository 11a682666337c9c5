// Package devices says which devices a pod has, and hands them out to the pod's networks. It also keeps the files by which device
// plugins, CNI plugins and Berth tell each other about a device: the Network Plumbing Working Group's Device Information Specification
// 1.1 (https://github.com/k8snetworkplumbingwg/device-info-spec).
//
// Its files: lister (asks the kubelet), answer (the kubelet's messages), devices (who gets which device), and info (device-info files).
package devices

import (
	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// Ask is what a network wants of its pod's devices.
type Ask struct {
	Network  string // for messages: nad.Network.Label
	Resource string // of which the network takes a device; "": it takes none
}

// Assign hands out a pod's devices (Lister.Devices) to the pod's networks, which come in the order of the pod's annotation: the first
// network of a resource gets the resource's first device, the second network the second one, as with Multus. The answer has a device for
// each network, "" for one that wants none.
//
// A network that finds no device left is an error: Multus runs its plugins without a device.
func Assign(networks []Ask, has map[string][]string) ([]string, *api.Error) {
	given := make([]string, len(networks))
	next := map[string]int{} // by resource: how many are handed out
	for i, n := range networks {
		if n.Resource == "" {
			continue
		}
		all, nth := has[n.Resource], next[n.Resource]
		if nth >= len(all) {
			return nil, cni.Errorf(cni.CodeConfig, "the pod has too few devices",
				"network %d, %.300s, asks for device %d of %.300s, and the pod has %d; expected containers that request as many as the pod's networks ask for",
				i+1, n.Network, nth+1, n.Resource, len(all))
		}
		given[i] = all[nth]
		next[n.Resource]++
	}
	return given, nil
}
