package nad

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berth-net/berth/internal/cni/scan"
)

// CapabilityInfoFile is the capability of plugins that read or write a device-info file: its path (device-info specification 1.1, section 5.1).
const CapabilityInfoFile = "CNIDeviceInfoFile"

// Offer returns configurations of Configure in which the plugins that declare a capability get its value by runtimeConfig. The value takes the
// place of one that is there. It is for what is known only when the attachment has its ID.
func Offer(configs []json.RawMessage, capability, value string) ([]json.RawMessage, error) {
	offered := slices.Clone(configs)
	for i, raw := range configs {
		fields, err := scan.Object(raw)
		if err != nil {
			return nil, fmt.Errorf("the configuration of plugin %d: %w", i+1, err)
		}
		declared, bad := parseCapabilities("capabilities", fields.Get("capabilities"))
		if bad != nil {
			return nil, bad
		}
		if !slices.Contains(declared, capability) {
			continue
		}
		runtime, bad := objectOf("runtimeConfig", fields.Get("runtimeConfig"))
		if bad != nil {
			return nil, bad
		}
		offered[i] = encode(with(fields, "runtimeConfig", encode(with(runtime, capability, quoted(value)))))
	}
	return offered, nil
}
