package conform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
)

// List is a network configuration list (CNI 1.1, section 1).
type List struct {
	Path    string // its file's
	Name    string
	Version string
	Plugins []Plugin

	DisableCheck bool // runtimes must not call CHECK
	DisableGC    bool // nor GC
}

// Plugin is a plugin of a list.
type Plugin struct {
	Type         string
	Capabilities []string // the capabilities that it declares
	Keys         map[string]json.RawMessage
}

// readList reads a conflist.
func readList(path string) (*List, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l, err := parseList(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	l.Path = path
	return l, nil
}

func parseList(raw []byte) (*List, error) {
	var file struct {
		Name    string                       `json:"name"`
		Version string                       `json:"cniVersion"`
		Plugins []map[string]json.RawMessage `json:"plugins"`

		DisableCheck any `json:"disableCheck"` // true, or in lists for CNI 0.4.0 the string "true"
		DisableGC    any `json:"disableGC"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("no network configuration list: %w", err)
	}
	switch {
	case file.Name == "":
		return nil, errors.New(`"name" is missing`)
	case file.Version == "":
		return nil, errors.New(`"cniVersion" is missing`)
	case len(file.Plugins) == 0:
		return nil, errors.New(`"plugins" is missing or empty: a list is needed, not a single plugin's configuration; put that into {"name": ..., "cniVersion": ..., "plugins": [ ]}`)
	}
	set := func(value any) bool { return value == true || value == "true" }
	l := &List{Name: file.Name, Version: file.Version, DisableCheck: set(file.DisableCheck), DisableGC: set(file.DisableGC)}
	for i, keys := range file.Plugins {
		p := Plugin{Keys: keys}
		if err := json.Unmarshal(keys["type"], &p.Type); err != nil || p.Type == "" {
			return nil, fmt.Errorf(`plugin %d has no "type"`, i)
		}
		var declared map[string]bool
		if err := json.Unmarshal(keys["capabilities"], &declared); err == nil {
			for c, on := range declared {
				if on {
					p.Capabilities = append(p.Capabilities, c)
				}
			}
		}
		slices.Sort(p.Capabilities)
		l.Plugins = append(l.Plugins, p)
	}
	return l, nil
}

// Conf returns a plugin's configuration as a runtime derives it from the list (CNI 1.1,
// section 3). keys replaces keys of the list or adds to them; a nil value removes a key. Another cniVersion is that of the
// configurations inside of the plugin's, too: a meta-plugin passes these on to the plugins to which it delegates.
func (l *List) Conf(plugin int, keys map[string]any) []byte {
	conf := map[string]any{}
	version, other := keys["cniVersion"].(string)
	for k, v := range l.Plugins[plugin].Keys {
		if conf[k] = v; other && version != l.Version {
			conf[k] = inVersion(v, version)
		}
	}
	delete(conf, "capabilities")
	conf["name"], conf["cniVersion"] = l.Name, l.Version
	for k, v := range keys {
		if conf[k] = v; v == nil {
			delete(conf, k)
		}
	}
	raw, err := json.Marshal(conf)
	if err != nil { // only if a check passes a value that is no JSON
		panic(err)
	}
	return raw
}

// inVersion returns a JSON value in which each "cniVersion" is another one. A value without any stays as it is, to the letter.
func inVersion(raw json.RawMessage, version string) json.RawMessage {
	if !bytes.Contains(raw, []byte(`"cniVersion"`)) {
		return raw
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var one any
	if d.Decode(&one) != nil {
		return raw
	}
	walk(one, func(v any) {
		if m, ok := v.(map[string]any); ok && m["cniVersion"] != nil {
			m["cniVersion"] = version
		}
	})
	out, err := json.Marshal(one)
	if err != nil {
		return raw
	}
	return out
}

// names reports whether an address stands in the list as the address of an interface: alone, or with the length of a prefix in which it is not the
// first address.
func (l *List) names(addr net.IP) bool {
	for _, p := range l.Plugins {
		for _, raw := range p.Keys {
			if slices.ContainsFunc(texts(raw), func(text string) bool {
				if ip, subnet, err := net.ParseCIDR(text); err == nil {
					return ip.Equal(addr) && !subnet.IP.Equal(addr)
				}
				return net.ParseIP(text).Equal(addr)
			}) {
				return true
			}
		}
	}
	return false
}

// texts returns all strings in a JSON value.
func texts(raw json.RawMessage) (all []string) {
	var one any
	if json.Unmarshal(raw, &one) != nil {
		return nil
	}
	walk(one, func(v any) {
		if text, ok := v.(string); ok {
			all = append(all, text)
		}
	})
	return all
}

// walk calls see with a JSON value and with every value in it.
func walk(v any, see func(any)) {
	see(v)
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			walk(one, see)
		}
	case map[string]any:
		for _, one := range v {
			walk(one, see)
		}
	}
}

// runtimeConfig returns those of the runtime's arguments for which the plugin declares a capability.
// If there is no such argument, it returns nil.
func (p Plugin) runtimeConfig(all map[string]any) map[string]any {
	some := maps.Clone(all)
	maps.DeleteFunc(some, func(k string, _ any) bool { return !slices.Contains(p.Capabilities, k) })
	if len(some) == 0 {
		return nil
	}
	return some
}
