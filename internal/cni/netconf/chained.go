package netconf

import (
	"maps"
	"slices"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// ModeChained is the mode of a configuration that stands in a list behind another plugin. It adds host ports and limits of bandwidth
// to the interface of prevResult.
const ModeChained = "chained"

// checkChained refuses, in mode chained, the keys that say how Berth makes an interface, or which further networks a pod gets.
func (c *Conf) checkChained(fields scan.Fields) *api.Error {
	if c.Mode != ModeChained {
		return nil
	}
	const hint = "in mode chained another plugin of the list makes the interface; leave this out"
	if c.IPAM != nil {
		return cni.FieldError("ipam", fields.Get("ipam"), hint)
	}
	for _, key := range slices.Concat([]string{"pool", "mtu", "dns"}, slices.Sorted(maps.Keys(networkReaders))) {
		if value := fields.Get(key); value != nil && !scan.IsNull(value) {
			return cni.FieldError(key, value, hint)
		}
	}
	runtime, err := scan.Object(fields.Get("runtimeConfig"))
	if err != nil {
		return nil // there is none, or setRuntime says what is wrong with it
	}
	for _, key := range []string{"ips", "mac"} {
		if value := runtime.Get(key); value != nil && !empty(value) {
			return cni.FieldError("runtimeConfig."+key, value, hint)
		}
	}
	return nil
}
