package nad

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

const maxType = 255 // bytes: a file name

// meta are the plugins that delegate to others by definitions, as Berth does. A network that delegates to one
// of them would ask for itself.
var meta = []string{"multus", "multus-shim"}

// delegating are the keys by which a configuration of Berth's own plugin delegates.
var delegating = []string{"delegates", "clusterNetwork"}

func parsePlugins(value []byte) ([]Plugin, *api.Error) {
	elements, err := scan.Array(value)
	if err != nil || len(elements) == 0 || len(elements) > maxPlugins {
		return nil, cni.ConfigError("plugins", value, "a list of 1 to 32 plugins' configurations")
	}
	var plugins []Plugin
	for i, element := range elements {
		p, e := parsePlugin(fmt.Sprintf("plugins[%d].", i), element)
		if e != nil {
			return nil, e
		}
		plugins = append(plugins, p)
	}
	return plugins, nil
}

// parsePlugin reads what matters of a plugin's configuration. Errors name keys with a prefix.
func parsePlugin(prefix string, raw []byte) (p Plugin, e *api.Error) {
	fields, err := scan.Object(raw)
	if err != nil {
		return p, cni.ConfigError(strings.TrimRight(prefix, ".: "), raw, "an object: a plugin's configuration")
	}
	p.Config = raw
	if p.Type, e = parseType(prefix, fields, true); e != nil {
		return p, e
	}
	// Plugins run these by their types (CVE-2021-20206: a type with a path in it).
	for _, key := range []string{"ipam", "delegate"} {
		inner, err := scan.Object(fields.Get(key))
		if err != nil { // absent, or of a form that only the plugin knows
			continue
		}
		if _, e := parseType(prefix+key+".", inner, false); e != nil {
			return p, e
		}
	}
	p.Capabilities, e = parseCapabilities(prefix+"capabilities", fields.Get("capabilities"))
	return p, e
}

// parseType reads the type of a plugin that Berth, or one of its delegates, would execute.
func parseType(prefix string, fields scan.Fields, needed bool) (string, *api.Error) {
	const expected = "a plugin's file name, without a path"
	key, value := prefix+"type", fields.Get("type")
	if value == nil {
		if needed {
			return "", cni.MissingError(key, expected)
		}
		return "", nil
	}
	kind, err := scan.String(value)
	switch {
	case err == nil && kind == "" && !needed: // libcni's own types write an empty ipam so
		return "", nil
	case err != nil || kind == "" || kind == "." || kind == ".." || strings.Contains(kind, "/") || !cni.IsShowable(kind, maxType):
		return "", cni.ConfigError(key, value, expected)
	case slices.Contains(meta, kind):
		return "", cni.ConfigError(key, value, "a plugin that attaches a pod: this one would ask for the pod's networks again")
	case kind == "berth-cni":
		for _, k := range delegating {
			if inner := fields.Get(k); inner != nil {
				return "", cni.FieldError(prefix+k, inner, "a network that delegates would ask for the pod's networks again")
			}
		}
	}
	return kind, nil
}

// parseCapabilities returns the capabilities that are true.
func parseCapabilities(key string, value []byte) ([]string, *api.Error) {
	if value == nil {
		return nil, nil
	}
	fields, err := scan.Object(value)
	if err != nil {
		return nil, cni.ConfigError(key, value, `an object such as {"ips": true}`)
	}
	var declared []string
	for _, f := range fields {
		switch string(f.Value) {
		case "true":
			declared = append(declared, f.Key)
		case "false", "null":
		default:
			return nil, cni.ConfigError(key+"."+f.Key, f.Value, "true or false")
		}
	}
	slices.Sort(declared)
	return declared, nil
}
