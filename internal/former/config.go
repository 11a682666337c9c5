package former

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// meta are Multus's plugins.
var meta = []string{"multus", "multus-shim"}

const maxType = 255 // bytes: a file name

// config is a network's configuration: of a list, or of one plugin. Libcni's own code reads it, because former pods were attached by
// what libcni made of it: libcni accepts duplicate keys, for example, and rounds large numbers.
type config struct {
	name, version string
	disableCheck  bool
	plugins       []*libcni.PluginConfig
}

// parseConfig reads a configuration, and checks its plugins.
func parseConfig(raw []byte) (*config, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return nil, fmt.Errorf("decoding the configuration: %w", err)
	}
	_, list := keys["plugins"]
	_, single := keys["type"]
	switch {
	case list && single:
		return nil, errors.New("its configuration has both type and plugins: nobody can tell which of them ADD executed")
	case single:
		return oneConfig(raw)
	}
	l, err := libcni.NetworkConfFromBytes(raw)
	if err != nil {
		return nil, err
	}
	return listConfig(l)
}

func oneConfig(raw []byte) (*config, error) {
	p, err := libcni.NetworkPluginConfFromBytes(raw)
	if err != nil {
		return nil, err
	}
	c := &config{name: p.Network.Name, version: p.Network.CNIVersion, plugins: []*libcni.PluginConfig{p}}
	return c, c.check()
}

func listConfig(l *libcni.NetworkConfigList) (*config, error) {
	c := &config{name: l.Name, version: l.CNIVersion, disableCheck: l.DisableCheck, plugins: l.Plugins}
	return c, c.check()
}

// check checks names and types, and gives a configuration without a version the oldest, as libcni does.
func (c *config) check() error {
	if c.version == "" {
		c.version = cni.Versions()[0]
	}
	if e := cni.CheckVersion("ADD", c.version); e != nil {
		return e
	}
	if e := cni.CheckNetworkName(c.name); e != nil {
		return e
	}
	if len(c.plugins) == 0 {
		return errors.New("its configuration has no plugins: they lay beside the file that it is from")
	}
	for i, p := range c.plugins {
		if err := checkTypes(p.Network.Type, p.Bytes); err != nil {
			return fmt.Errorf("plugin %d: %w", i+1, err)
		}
	}
	return nil
}

// checkTypes checks a plugin's type, as libcni has read it, and those that plugins execute themselves (CVE-2021-20206: a type with a
// path in it). Libcni also takes a key such as TYPE for the type: whoever wrote two of them meant no plugin that anybody could name.
func checkTypes(name string, raw []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return err
	}
	if given, err := scan.String(keys["type"]); err == nil && given != name {
		return fmt.Errorf("its type is %.64q, and %.64q by another key", given, name)
	}
	if e := checkType("type", keys["type"], true); e != nil {
		return e
	}
	for _, key := range []string{"ipam", "delegate"} {
		var inner map[string]json.RawMessage
		if json.Unmarshal(keys[key], &inner) != nil { // absent, or of a form that only the plugin knows
			continue
		}
		if e := checkType(key+".type", inner["type"], false); e != nil {
			return e
		}
	}
	return nil
}

func checkType(key string, value json.RawMessage, needed bool) error {
	const expected = "a plugin's file name, without a path"
	if value == nil {
		if needed {
			return cni.MissingError(key, expected)
		}
		return nil
	}
	name, err := scan.String(value)
	if err == nil && name == "" && !needed {
		return nil
	}
	if err != nil || name == "" || name == "." || name == ".." || strings.Contains(name, "/") || !cni.IsShowable(name, maxType) {
		return cni.ConfigError(key, value, expected)
	}
	return nil
}

// types returns the plugins' types.
func (c *config) types() []string {
	var types []string
	for _, p := range c.plugins {
		types = append(types, p.Network.Type)
	}
	return types
}

// multus returns the index of Multus's plugin; -1: it is not among the plugins.
func (c *config) multus() int {
	return slices.IndexFunc(c.types(), func(t string) bool { return slices.Contains(meta, t) })
}

// configure returns the plugins' configurations as Attachment.Plugins has them: libcni gives each plugin those of the capabilities'
// values that the plugin declares, in the place of any runtimeConfig that it has (libcni, injectRuntimeConfig).
func (c *config) configure(values map[string]json.RawMessage) ([]json.RawMessage, error) {
	var plugins []json.RawMessage
	for _, p := range c.plugins {
		var keys map[string]any // as libcni has them
		if err := json.Unmarshal(p.Bytes, &keys); err != nil {
			return nil, err
		}
		given := map[string]json.RawMessage{}
		for capability, declared := range p.Network.Capabilities {
			if value, ok := values[capability]; ok && declared {
				given[capability] = value
			}
		}
		if len(given) > 0 {
			keys["runtimeConfig"] = given
		}
		for _, key := range []string{"name", "cniVersion", "prevResult"} {
			delete(keys, key)
		}
		raw, err := json.Marshal(keys)
		if err != nil {
			return nil, err
		}
		plugins = append(plugins, raw)
	}
	return plugins, nil
}
