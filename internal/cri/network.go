package cri

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/netconf"
	"github.com/berth-net/berth/internal/misspelt"
	"github.com/berth-net/berth/internal/root"
)

// Network is a network's configuration, as libcni reads it from a runtime's folder: a list of
// plugins, or one plugin by itself.
type Network struct {
	Name    string   `json:"name"`
	Version string   `json:"cniVersion"`
	Plugins []Plugin `json:"plugins"`
}

// Plugin is a plugin's part of a network's configuration.
type Plugin struct {
	Type         string          `json:"type"`
	Root         string          `json:"root"` // Root and Pool are keys of Berth's plugin
	Pool         string          `json:"pool"`
	Capabilities map[string]bool `json:"capabilities"`

	text json.RawMessage
}

// UnmarshalJSON reads a part, and keeps its text.
func (p *Plugin) UnmarshalJSON(text []byte) error {
	type plain Plugin
	p.text = slices.Clone(text)
	return json.Unmarshal(text, (*plain)(p))
}

// ReadNetwork reads a configuration from a file.
func ReadNetwork(path string) (n Network, err error) {
	text, err := root.ReadFile(path)
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(text, &n); err != nil || n.Plugins != nil {
		return n, err
	}
	n.Plugins = make([]Plugin, 1)
	return n, json.Unmarshal(text, &n.Plugins[0])
}

// Plugin returns the part of the first plugin of a type; false: there is none.
func (n Network) Plugin(kind string) (Plugin, bool) {
	i := slices.IndexFunc(n.Plugins, func(p Plugin) bool { return p.Type == kind })
	if i < 0 {
		return Plugin{}, false
	}
	return n.Plugins[i], true
}

// Refused says why Berth's plugin would refuse every ADD by its part p of the network. It leaves out
// the value of a key that Berth does not have: the value may be a secret, and bundles show the error.
func (n Network) Refused(p Plugin) error {
	_, e := netconf.ParsePart(n.Name, n.Version, p.text)
	switch {
	case e == nil:
		return nil
	case e.Code == cni.CodeField:
		key, _, _ := strings.Cut(e.Details, ": ")
		return fmt.Errorf("%s: %s", key, e.Details[strings.LastIndex(e.Details, "; ")+len("; "):])
	}
	return errors.New(cmp.Or(e.Details, e.Msg))
}

// Strange says which capabilities the plugin's part declares although Berth does not have them; "":
// none. If a runtime passes such a capability, the plugin refuses or ignores it.
func (p Plugin) Strange() string {
	var all []string
	for c, on := range p.Capabilities {
		if on && !slices.Contains(netconf.Capabilities(), c) {
			all = append(all, c+misspelt.Meant(c, netconf.Capabilities()))
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return fmt.Sprintf("Berth has no capability %s; it has %s", strings.Join(all, ", "), strings.Join(netconf.Capabilities(), ", "))
}
