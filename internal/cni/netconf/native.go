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
}

// macvlanModes are the kernel's modes of macvlans, in ip's words.
var macvlanModes = []string{"bridge", "private", "vepa", "passthru"}

// nativeModes are the modes of the keys of Native.
var nativeModes = map[string]string{"master": ModeMacvlan, "macvlanMode": ModeMacvlan}

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
	if c.Mode != ModeMacvlan {
		return nil
	}
	if c.Native.Master == "" {
		return cni.MissingError("master", `"eth1"`)
	}
	if c.Native.MacvlanMode == "" {
		c.Native.MacvlanMode = macvlanModes[0]
	}
	return nil
}
