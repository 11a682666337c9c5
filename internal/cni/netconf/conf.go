// Package netconf reads, for the agent, a network configuration as the plugin gets it on
// its stdin (CNI 1.1, section 1, as libcni passes it on).
package netconf

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
	"github.com/berth-net/berth/internal/misspelt"
	"github.com/berth-net/berth/internal/root"
)

// Modes that have keys of their own, and ModeRouted, which is the mode of a configuration that names none.
const (
	ModeRouted  = "routed"
	ModeMacvlan = "macvlan"
	ModeBridge  = "bridge"
)

// Bounds of an MTU, in bytes: the least that IPv4 (RFC 791) and IPv6 (RFC
// 8200) work with, and the most a veth takes.
const (
	MinMTU4 = 68
	MinMTU6 = 1280
	MaxMTU  = 65535
)

const (
	maxType = 255 // bytes: a file name
	maxMode = 64
)

// Conf is a configuration of the plugin.
type Conf struct {
	Version    string          // cniVersion; 0.1.0 if absent
	Name       string          // the network's
	Type       string          // the plugin's file name
	Root       root.Dir        // of the agent
	Pool       string          // "" is the agent's default
	Mode       string          // ModeRouted if absent; the agent checks whether the mode exists
	MTU        int             // 0 is the agent's default. At least MinMTU4; MinMTU6 is checked later, with the pool
	Native     Native          // of ModeMacvlan and ModeBridge
	Wait       bool            // DEL answers when everything is gone
	DNS        DNS             // goes into the result
	IPs        []netip.Addr    // requested: at most one a family; no zone, not IPv4 in IPv6
	Ports      []Port          // requested host ports; no two are the same
	Bandwidth  Bandwidth       // requested limits
	MAC        []byte          // requested: 6 bytes; nil is Berth's choice
	PrevResult json.RawMessage // as it stands; nil if absent. package result parses it
	Networks   *Networks       // nil: the configuration says nothing of further networks
	IPAM       *IPAM           // the plugin that gives the addresses; nil: a pool gives them
	List       *List           // of mode ModeDelegated: what other plugins get. No configuration says it: package networks makes it
	Gateways   []netip.Addr    // of the pod's default routes, which lead through this network; one of each family at most. As List
}

// List is a list of plugins that make a network, as one attachment has them.
type List struct {
	Plugins      []json.RawMessage // their configurations in the order of ADD, without name, cniVersion and prevResult
	Args         string            // CNI_ARGS
	Folders      []string          // CNI_PATH
	Device       string            // ID of the device that the network has; "": it has none
	Resource     string            // of the device, as its device plugin calls it; "": no device plugin has given it
	DisableCheck bool
	DisableGC    bool
}

// IPAM is what the configuration says of an IPAM plugin that gives the addresses instead of a pool (CNI 1.1, section 5). Requested addresses
// are the plugin's to read.
type IPAM struct {
	Type    string          // the plugin's
	Config  json.RawMessage // the whole configuration, as the plugin gets it; without prevResult
	Args    string          // CNI_ARGS. Package networks sets it
	Folders []string        // CNI_PATH. Package networks may set it anew
	// DisableGC is the list's, of which the plugin's configuration does not tell. Package networks sets it.
	DisableGC bool
}

// DNS has the fields of the CNI library's types.DNS, and converts to it.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Parse reads a configuration strictly: an unknown key is an error, so that no setting that
// somebody relies on is silently ignored.
func Parse(raw []byte) (*Conf, *api.Error) {
	head, e := cni.ParseHead(raw)
	if e != nil {
		return nil, e
	}
	if e := cni.CheckVersion("ADD", head.Version); e != nil {
		return nil, e
	}
	fields, err := scan.Object(raw)
	if err != nil {
		return nil, cni.DecodeError(err)
	}
	c := &Conf{Version: head.Version, Name: head.Name, Root: head.Root, Pool: head.Pool, Wait: head.Wait, Mode: ModeRouted}
	if fields.Get("type") == nil {
		return nil, cni.MissingError("type", `"berth-cni"`)
	}
	for _, f := range fields {
		if e := c.set(f); e != nil {
			return nil, e
		}
	}
	if e := c.setNetworks(fields); e != nil {
		return nil, e
	}
	if e := c.setIPAM(fields); e != nil {
		return nil, e
	}
	if e := c.checkChained(fields); e != nil {
		return nil, e
	}
	if !c.Networks.Others() {
		if e := c.setRuntime(fields.Get("runtimeConfig")); e != nil {
			return nil, e
		}
	}
	if e := c.checkMTU(); e != nil {
		return nil, e
	}
	if e := c.checkNative(fields); e != nil {
		return nil, e
	}
	return c, nil
}

// ParsePart is Parse for the plugin's part of a list, to which libcni adds the list's name and
// version.
func ParsePart(name, version string, part []byte) (*Conf, *api.Error) {
	var conf map[string]any // as libcni has it
	if err := json.Unmarshal(part, &conf); err != nil {
		return nil, cni.DecodeError(err)
	}
	if conf == nil {
		return Parse(part)
	}
	conf["name"], conf["cniVersion"] = name, version
	raw, err := json.Marshal(conf)
	if err != nil {
		return nil, cni.DecodeError(err)
	}
	return Parse(raw)
}

// set reads one key. Null counts as absent.
func (c *Conf) set(f scan.Field) (e *api.Error) {
	if scan.IsNull(f.Value) && known(f.Key) {
		return nil
	}
	switch f.Key {
	case "cniVersion", "name", "root", "pool", "wait", "addWait", "gcMinAge": // the head's
	case "runtimeConfig": // Parse's
	case "type":
		var err error
		if c.Type, err = scan.String(f.Value); err != nil || c.Type == "" || strings.Contains(c.Type, "/") || !cni.IsShowable(c.Type, maxType) {
			return cni.ConfigError(f.Key, f.Value, "the plugin's file name")
		}
	case "mode":
		mode, err := scan.String(f.Value)
		if err != nil || mode == ModeDelegated || mode != "" && !cni.IsShowable(mode, maxMode) {
			return cni.ConfigError(f.Key, f.Value, "a mode's name")
		}
		if mode != "" {
			c.Mode = mode
		}
	case "mtu":
		c.MTU, e = parseMTU(f.Value)
	case "dns":
		c.DNS, e = parseDNS(f.Value)
	case "prevResult":
		if f.Value[0] != '{' {
			return cni.ConfigError(f.Key, f.Value, "an object: the result of ADD")
		}
		c.PrevResult = json.RawMessage(f.Value)
	case "ipam": // Parse's
	case "ipMasq":
		if string(f.Value) != "false" {
			return cni.FieldError(f.Key, f.Value, "masquerade is set for the whole node, in the agent's configuration")
		}
	default:
		if read, native := nativeReaders[f.Key]; native {
			return read(&c.Native, f.Key, f.Value)
		}
		if !known(f.Key) {
			return cni.FieldError(f.Key, f.Value, unknownHint(f.Key))
		}
	}
	return e
}

// Keys returns the keys with which a configuration says what Berth should do.
func Keys() []string {
	return append([]string{"root", "pool", "ipam", "mode", "mtu", "wait", "addWait", "gcMinAge", "dns"}, nativeKeys...)
}

// knownKeys are all keys that a configuration may have, except keys with the prefix
// cni.dev/: the specification may add more of these.
var knownKeys = slices.Concat(Keys(), slices.Sorted(maps.Keys(networkReaders)), idleKeys, []string{
	"cniVersion", "name", "type", "runtimeConfig", "prevResult", "ipMasq",
	// Keys for runtimes, which plugins ignore:
	"args", "capabilities", "cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins",
})

func known(key string) bool {
	for _, k := range knownKeys {
		if k == key {
			return true
		}
	}
	return strings.HasPrefix(key, "cni.dev/")
}

// unknownHint says which known key may be meant by an unknown one.
func unknownHint(key string) string {
	if k := misspelt.Nearest(key, knownKeys); k != "" {
		return fmt.Sprintf("perhaps %q is meant", k)
	}
	return "remove it"
}

func parseMTU(value []byte) (int, *api.Error) {
	n, err := strconv.Atoi(string(value))
	if err != nil || n != 0 && (n < MinMTU4 || n > MaxMTU) {
		return 0, cni.ConfigError("mtu", value, "bytes from 68 (IPv4) or 1280 (IPv6) to 65535, or 0 for the agent's default")
	}
	return n, nil
}
