package former

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// delegate is an element of Multus's scratch file (Multus 4.2, types.DelegateNetConf, as saveDelegates writes it). Port mappings and
// bandwidth that the pod asked for are not in it.
type delegate struct {
	IfnameRequest         string   `json:"ifnameRequest"`
	MacRequest            string   `json:"macRequest"`
	InfinibandGUIDRequest string   `json:"infinibandGUIDRequest"`
	IPRequest             []string `json:"ipRequest"`
	DeviceID              string   `json:"deviceID"`
	// CNINetworkConfigList has plugins if Multus read the list from a file: then ADD executed these. Bytes lacks most of their keys.
	CNINetworkConfigList struct {
		Name, CNIVersion string
		DisableCheck     bool
		Plugins          []struct{ Bytes []byte }
	}
	Bytes []byte // the configuration otherwise
}

// scratch is Multus's file about a container.
type scratch struct {
	path      string
	delegates []delegate // in the order of ADD
}

func parseScratch(path string, raw []byte) (*scratch, error) {
	s := &scratch{path: path}
	if err := json.Unmarshal(raw, &s.delegates); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	if len(s.delegates) == 0 {
		return nil, errors.New("it has no delegates")
	}
	return s, nil
}

// config returns what ADD executed.
func (d *delegate) config() (*config, error) {
	l := d.CNINetworkConfigList
	if len(l.Plugins) == 0 {
		return parseConfig(d.Bytes)
	}
	list := &libcni.NetworkConfigList{Name: l.Name, CNIVersion: l.CNIVersion, DisableCheck: l.DisableCheck}
	for i, p := range l.Plugins {
		conf, err := libcni.NetworkPluginConfFromBytes(p.Bytes)
		if err != nil {
			return nil, fmt.Errorf("plugin %d: %w", i+1, err)
		}
		list.Plugins = append(list.Plugins, conf)
	}
	return listConfig(list)
}

// ifname is the name of a delegate's interface (Multus, getIfname): what the pod asked for; for the first delegate, Multus's own
// interface; netN for the others.
func (d *delegate) ifname(i int, own string) string {
	switch {
	case d.IfnameRequest != "":
		return d.IfnameRequest
	case i == 0:
		return own
	}
	return fmt.Sprintf("net%d", i)
}

// values returns what Multus offers to the plugins by capability: what it got itself, and what the pod asked for, unless the delegate
// is the first one (Multus, mergeCNIRuntimeConfig).
func (d *delegate) values(i int, given map[string]json.RawMessage) map[string]json.RawMessage {
	values := map[string]json.RawMessage{}
	maps.Copy(values, given)
	if i == 0 {
		return values
	}
	put := func(capability string, value any, asked bool) {
		if asked {
			values[capability], _ = json.Marshal(value) // of texts alone: it cannot fail
		}
	}
	put("ips", d.IPRequest, len(d.IPRequest) > 0)
	put("mac", d.MacRequest, d.MacRequest != "")
	put("infinibandGUID", d.InfinibandGUIDRequest, d.InfinibandGUIDRequest != "")
	put("deviceID", d.DeviceID, d.DeviceID != "")
	return values
}

// offered returns what Multus's own plugin got by runtimeConfig. Multus knows no other capabilities (types.RuntimeConfig).
func (e *entry) offered() map[string]json.RawMessage {
	known := []string{"portMappings", "bandwidth", "ips", "mac", "infinibandGUID", "deviceID", "CNIDeviceInfoFile"}
	offered := map[string]json.RawMessage{}
	for capability, declared := range e.config.plugins[e.config.multus()].Network.Capabilities {
		if value, ok := e.capabilities[capability]; ok && declared && slices.Contains(known, capability) {
			offered[capability] = value
		}
	}
	return offered
}

// cniDir returns the cniDir of Multus's own plugin; "": the default.
func (e *entry) cniDir() (string, error) {
	var conf struct {
		CNIDir string `json:"cniDir"`
	}
	if err := json.Unmarshal(e.config.plugins[e.config.multus()].Bytes, &conf); err != nil {
		return "", fmt.Errorf("decoding Multus's configuration: %w", err)
	}
	if conf.CNIDir != "" && !strings.HasPrefix(conf.CNIDir, "/") {
		return "", fmt.Errorf("cniDir is %.64q; expected an absolute path", conf.CNIDir)
	}
	return conf.CNIDir, nil
}
