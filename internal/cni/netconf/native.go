package netconf

import (
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Native is what a configuration says of a mode whose pods are on a network of the node's.
type Native struct {
	Master      string // of ModeMacvlan: a link of the node
	MacvlanMode string // of ModeMacvlan: one of macvlanModes; the first if absent
	Bridge      string // of ModeBridge: a bridge of the node
	Isolated    bool   // of ModeBridge: other isolated pods of the bridge are out of reach
	Hairpin     bool   // of ModeBridge: the pod gets frames back that it has sent to itself by way of the bridge
}

// macvlanModes are the kernel's modes of macvlans, in ip's words.
var macvlanModes = []string{"bridge", "private", "vepa", "passthru"}

// nativeModes are the modes of the keys of Native.
var nativeModes = map[string]string{
	"master": ModeMacvlan, "macvlanMode": ModeMacvlan,
	"bridge": ModeBridge, "isolated": ModeBridge, "hairpinMode": ModeBridge,
}

var nativeKeys = slices.Sorted(maps.Keys(nativeModes))

// nativeReaders read the keys of Native.
var nativeReaders = map[string]func(n *Native, key string, value []byte) *api.Error{
	"master": func(n *Native, key string, value []byte) *api.Error {
		return readLink(&n.Master, key, value)
	},
	"macvlanMode": func(n *Native, key string, value []byte) *api.Error {
		mode, err := scan.String(value)
		if err != nil || !slices.Contains(macvlanModes, mode) {
			return cni.ConfigError(key, value, strings.Join(macvlanModes, ", "))
		}
		n.MacvlanMode = mode
		return nil
	},
	"bridge": func(n *Native, key string, value []byte) *api.Error {
		return readLink(&n.Bridge, key, value)
	},
	"isolated": func(n *Native, key string, value []byte) *api.Error {
		return readFlag(&n.Isolated, key, value)
	},
	"hairpinMode": func(n *Native, key string, value []byte) *api.Error {
		return readFlag(&n.Hairpin, key, value)
	},
}

func readFlag(to *bool, key string, value []byte) *api.Error {
	*to = string(value) == "true"
	if !*to && string(value) != "false" {
		return cni.ConfigError(key, value, "true or false")
	}
	return nil
}

// maxLink is the length of the longest name that a link can have, in bytes (IFNAMSIZ - 1).
const maxLink = 15

// readLink reads the name of a link of the node.
func readLink(to *string, key string, value []byte) *api.Error {
	name, err := scan.String(value)
	odd := func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }
	if err != nil || name == "" || name == "." || name == ".." || strings.ContainsFunc(name, odd) || !cni.IsShowable(name, maxLink) {
		return cni.ConfigError(key, value, "the name of a link of the node, such as eth1")
	}
	*to = name
	return nil
}

// checkNative refuses keys of another mode than the configuration's, and a mode without the key that it needs.
func (c *Conf) checkNative(fields scan.Fields) *api.Error {
	for _, key := range nativeKeys {
		if value := fields.Get(key); value != nil && !scan.IsNull(value) && c.Mode != nativeModes[key] {
			return cni.FieldError(key, value, "only mode "+nativeModes[key]+" has this key, and the mode is "+c.Mode)
		}
	}
	switch {
	case c.Mode == ModeMacvlan && c.Native.Master == "":
		return cni.MissingError("master", `"eth1"`)
	case c.Mode == ModeBridge && c.Native.Bridge == "":
		return cni.MissingError("bridge", `"br0"`)
	case c.Mode == ModeMacvlan && c.Native.MacvlanMode == "":
		c.Native.MacvlanMode = macvlanModes[0]
	}
	return nil
}
