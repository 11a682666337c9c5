package nad

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Given is what plugins get although no selection asks for it.
type Given struct {
	// Device is the ID of the device that the pod has of Network.Resource, as the kubelet says; "": none.
	Device string
	// Offered are values, in JSON, by capability for the plugins that declare these: the runtime's own runtimeConfig,
	// which goes to the default network only. Nobody has to declare one of them. What the
	// selection asks for comes before them.
	Offered map[string]json.RawMessage
}

// Configure returns the configuration of each plugin for one attachment: what a plugin gets by runtimeConfig
// for the capabilities that it declares (CNI conventions), the pod's cni-args in args.cni, and the device in
// deviceID and pciBusID, as Multus does. libcni still adds name, cniVersion and prevResult, so that it must
// get no CapabilityArgs beside these configurations.
//
// A capability that the pod asks for, and that no plugin declares, is an error: Multus leaves it out without a
// word. So is a device that is not the one the pod has.
func (n *Network) Configure(s *Selection, given Given) ([]json.RawMessage, *api.Error) {
	fail := func(e *api.Error) ([]json.RawMessage, *api.Error) {
		return nil, invalid("request to network "+n.Label(), e)
	}
	if s.DeviceID != "" && given.Device != "" && s.DeviceID != given.Device {
		return fail(cni.ConfigError("deviceID", quoted(s.DeviceID), given.Device+", which the pod has of "+n.Resource))
	}
	asked := s.capabilities()
	if e := n.checkDeclared(asked); e != nil {
		return fail(e)
	}
	values := map[string]json.RawMessage{}
	maps.Copy(values, given.Offered)
	maps.Copy(values, asked)
	if given.Device != "" {
		values["deviceID"] = quoted(given.Device)
	}
	var configs []json.RawMessage
	for i := range n.Plugins {
		config, e := n.Plugins[i].configure(values, s.Args, given.Device)
		if e != nil {
			return fail(cni.Errorf(e.Code, e.Msg, "plugin %d, %s: %s", i+1, n.Plugins[i].Type, e.Details))
		}
		configs = append(configs, config)
	}
	return configs, nil
}

// checkDeclared refuses capabilities that no plugin declares.
func (n *Network) checkDeclared(asked map[string]json.RawMessage) *api.Error {
	var missing []string
	for capability := range asked {
		if !slices.ContainsFunc(n.Plugins, func(p Plugin) bool { return slices.Contains(p.Capabilities, capability) }) {
			missing = append(missing, capability)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return cni.Errorf(cni.CodeConfig, "", `the pod asks for %s, and none of the network's plugins has it; expected a plugin with "capabilities": {%q: true}`,
		list(missing), missing[0])
}

// capabilities returns what a pod asks for, by capability, as a runtime passes it (CNI conventions).
func (s *Selection) capabilities() map[string]json.RawMessage {
	asked := map[string]json.RawMessage{}
	put := func(capability string, value any) {
		raw, err := json.Marshal(value)
		if err != nil {
			panic(err) // texts and numbers only
		}
		asked[capability] = raw
	}
	if len(s.IPs) > 0 {
		ips := make([]string, len(s.IPs))
		for i, ip := range s.IPs {
			ips[i] = ip.String()
		}
		put("ips", ips)
	}
	if s.MAC != nil {
		put("mac", s.MAC.String())
	}
	if s.GUID != nil {
		put("infinibandGUID", s.GUID.String())
	}
	if s.DeviceID != "" {
		put("deviceID", s.DeviceID)
	}
	if len(s.Ports) > 0 {
		put("portMappings", portMappings(s))
	}
	if b := s.Bandwidth; b.Ingress.Rate > 0 || b.Egress.Rate > 0 {
		put("bandwidth", bandwidth{b.Ingress.Rate, b.Ingress.Burst, b.Egress.Rate, b.Egress.Burst})
	}
	return asked
}

type portMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

func portMappings(s *Selection) []portMapping {
	ports := make([]portMapping, len(s.Ports))
	for i, p := range s.Ports {
		ports[i] = portMapping{HostPort: p.Host, ContainerPort: p.Container, Protocol: p.Protocol}
		if p.HostIP.IsValid() {
			ports[i].HostIP = p.HostIP.String()
		}
	}
	return ports
}

type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// configure writes one plugin's configuration.
func (p *Plugin) configure(values map[string]json.RawMessage, args json.RawMessage, device string) (json.RawMessage, *api.Error) {
	fields, err := scan.Object(p.Config)
	if err != nil {
		return nil, cni.DecodeError(err)
	}
	var runtime scan.Fields
	for _, capability := range p.Capabilities {
		if value, ok := values[capability]; ok {
			runtime = append(runtime, scan.Field{Key: capability, Value: value})
		}
	}
	if args != nil {
		merged, e := mergeArgs(fields.Get("args"), args)
		if e != nil {
			return nil, e
		}
		fields = with(fields, "args", merged)
	}
	if device != "" {
		fields = with(with(fields, "deviceID", quoted(device)), "pciBusID", quoted(device))
	}
	if len(runtime) > 0 {
		fields = with(fields, "runtimeConfig", encode(runtime))
	}
	return encode(fields), nil
}

// mergeArgs puts the fields of cni-args into the object cni of a plugin's args; those of cni-args count.
func mergeArgs(args []byte, more json.RawMessage) ([]byte, *api.Error) {
	outer, e := objectOf("args", args)
	if e != nil {
		return nil, e
	}
	inner, e := objectOf("args.cni", outer.Get("cni"))
	if e != nil {
		return nil, e
	}
	added, e := objectOf("cni-args", more)
	if e != nil {
		return nil, e
	}
	for _, f := range added {
		inner = with(inner, f.Key, f.Value)
	}
	return encode(with(outer, "cni", encode(inner))), nil
}

// objectOf returns the fields of an object; none if the value is absent.
func objectOf(key string, value []byte) (scan.Fields, *api.Error) {
	if value == nil {
		return nil, nil
	}
	fields, err := scan.Object(value)
	if err != nil {
		return nil, cni.ConfigError(key, value, "an object")
	}
	return fields, nil
}

// with returns fields with a key's value set.
func with(fields scan.Fields, key string, value []byte) scan.Fields {
	fields = slices.Clone(fields)
	for i := range fields {
		if fields[i].Key == key {
			fields[i].Value = value
			return fields
		}
	}
	return append(fields, scan.Field{Key: key, Value: value})
}

func encode(fields scan.Fields) []byte {
	out := []byte{'{'}
	for i, f := range fields {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(scan.AppendString(out, f.Key), ':')
		out = append(out, f.Value...)
	}
	return append(out, '}')
}
