package netconf

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// ModeDelegated is the mode of a network that other plugins make. No configuration can name it: a configuration that has delegates or
// clusterNetwork means it.
const ModeDelegated = "delegated"

// What a configuration says that leaves the keys out, as Multus 4.2 has it.
const (
	DefaultBinDir    = "/opt/cni/bin"
	DefaultConfDir   = "/etc/cni/multus/net.d"
	DefaultNamespace = "kube-system"
	globalNamespace  = "default"
)

// Bounds of what a configuration says of networks.
const (
	maxDelegates  = 16
	maxNetworks   = 64
	maxNamespaces = 64
	maxReference  = 4096 // bytes of a network's name or path
)

// Networks is what a configuration says of the networks that its pods get, by the keys of Multus 4.2 (docs/MULTUS.md). The agent keeps
// it with a pod's first attachment, for networks that the pod asks for later.
type Networks struct {
	// Delegates are configurations, each of one plugin or of a list. The first makes the pod's first interface, and the others further
	// ones; none: ClusterNetwork, or else Berth, makes the first.
	Delegates []json.RawMessage `json:"delegates,omitempty"`
	// ClusterNetwork is the network of the pod's first interface: a definition's [namespace/]name, the name in a file of ConfDir,
	// or a path; "": none is named.
	ClusterNetwork string `json:"clusterNetwork,omitempty"`
	// DefaultNetworks are further networks, named as ClusterNetwork is, of each pod that is in none of SystemNamespaces.
	DefaultNetworks  []string `json:"defaultNetworks,omitempty"`
	SystemNamespaces []string `json:"systemNamespaces,omitempty"`
	// Isolation lets a pod ask for definitions of its own namespace and of Global only.
	Isolation        bool     `json:"namespaceIsolation,omitempty"`
	GlobalNamespaces []string `json:"globalNamespaces,omitempty"`
	Namespace        string   `json:"multusNamespace"` // of definitions that ClusterNetwork and DefaultNetworks name
	ConfDir          string   `json:"confDir"`         // where the networks' files are
	BinDir           string   `json:"binDir"`          // where the plugins are
	// Indicator is a file that is there as soon as the default network can serve pods; "": none is waited for.
	Indicator string `json:"readinessindicatorfile,omitempty"`
	// RuntimeConfig is what the runtime passes for the capabilities that the plugins of the default network declare; an object, or nil.
	RuntimeConfig json.RawMessage `json:"runtimeConfig,omitempty"`
}

// Others reports whether other plugins make the pod's first interface.
func (n *Networks) Others() bool { return n != nil && (len(n.Delegates) > 0 || n.ClusterNetwork != "") }

// Global returns the namespaces whose definitions each pod may ask for.
func (n *Networks) Global() []string {
	if len(n.GlobalNamespaces) == 0 {
		return []string{globalNamespace}
	}
	return n.GlobalNamespaces
}

// NoNetworks is what a configuration says that has none of the keys.
func NoNetworks() *Networks {
	return &Networks{SystemNamespaces: []string{DefaultNamespace}, Namespace: DefaultNamespace, ConfDir: DefaultConfDir, BinDir: DefaultBinDir}
}

// idleKeys are keys of Multus that say nothing to Berth: the agent has its own log and its own way to the API server, and cniDir
// is where Multus has kept what it attached (internal/former).
var idleKeys = []string{"cniDir", "kubeconfig", "logFile", "logLevel", "logOptions", "logToStderr"}

// ownKeys are keys that say how Berth makes the first interface.
var ownKeys = slices.Concat([]string{"pool", "mode", "mtu", "ipam", "ipMasq", "dns"}, nativeKeys)

// setNetworks reads the keys of Networks.
func (c *Conf) setNetworks(fields scan.Fields) *api.Error {
	n := NoNetworks()
	said := false
	for _, f := range fields {
		read, known := networkReaders[f.Key]
		if !known || scan.IsNull(f.Value) {
			continue
		}
		said = true
		if e := read(n, f.Key, f.Value); e != nil {
			return e
		}
	}
	if !said {
		return nil
	}
	c.Networks = n
	if !n.Others() {
		return nil
	}
	c.Mode = ModeDelegated
	for _, key := range ownKeys {
		if value := fields.Get(key); value != nil {
			return cni.FieldError(key, value, "another plugin makes the first interface, and its configuration says this; or leave out delegates and clusterNetwork")
		}
	}
	if value := fields.Get("runtimeConfig"); value != nil {
		if _, err := scan.Object(value); err != nil {
			return cni.ConfigError("runtimeConfig", value, "an object")
		}
		n.RuntimeConfig = json.RawMessage(value)
	}
	if len(n.Delegates) > 0 && n.ClusterNetwork != "" {
		return cni.ConfigError("clusterNetwork", scan.AppendString(nil, n.ClusterNetwork), "either clusterNetwork or delegates: a pod has one default network")
	}
	return nil
}

// networkReaders read the keys of Networks, but for runtimeConfig.
var networkReaders = map[string]func(n *Networks, key string, value []byte) *api.Error{
	"delegates": func(n *Networks, key string, value []byte) *api.Error {
		elements, err := scan.Array(value)
		if err != nil || len(elements) == 0 || len(elements) > maxDelegates {
			return cni.ConfigError(key, value, "a list of 1 to 16 configurations")
		}
		for _, element := range elements {
			if _, err := scan.Object(element); err != nil {
				return cni.ConfigError(key, element, "a configuration of a plugin or of a list of plugins")
			}
			n.Delegates = append(n.Delegates, json.RawMessage(element))
		}
		return nil
	},
	"clusterNetwork": func(n *Networks, key string, value []byte) (e *api.Error) {
		n.ClusterNetwork, e = reference(key, value)
		return e
	},
	"defaultNetworks": func(n *Networks, key string, value []byte) *api.Error {
		elements, err := scan.Array(value)
		if err != nil || len(elements) > maxNetworks {
			return cni.ConfigError(key, value, "a list of at most 64 names or paths of networks")
		}
		for _, element := range elements {
			name, e := reference(key, element)
			if e != nil {
				return e
			}
			n.DefaultNetworks = append(n.DefaultNetworks, name)
		}
		return nil
	},
	"systemNamespaces": func(n *Networks, key string, value []byte) *api.Error {
		elements, err := scan.Array(value)
		if err != nil || len(elements) > maxNamespaces {
			return cni.ConfigError(key, value, "a list of at most 64 namespaces")
		}
		n.SystemNamespaces = nil
		for _, element := range elements {
			name, err := scan.String(element)
			if err != nil || !isNamespace(name) {
				return cni.ConfigError(key, element, "a namespace")
			}
			n.SystemNamespaces = append(n.SystemNamespaces, name)
		}
		return nil
	},
	"globalNamespaces": func(n *Networks, key string, value []byte) *api.Error {
		text, err := scan.String(value)
		names := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
		if err != nil || len(names) > maxNamespaces {
			return cni.ConfigError(key, value, "at most 64 namespaces in one text, with commas between them")
		}
		for _, name := range names {
			if !isNamespace(name) {
				return cni.ConfigError(key, scan.AppendString(nil, name), "a namespace")
			}
		}
		n.GlobalNamespaces = names
		return nil
	},
	"namespaceIsolation": func(n *Networks, key string, value []byte) *api.Error {
		switch string(value) {
		case "true":
			n.Isolation = true
		case "false":
		default:
			return cni.ConfigError(key, value, "true or false")
		}
		return nil
	},
	"multusNamespace": func(n *Networks, key string, value []byte) *api.Error {
		name, err := scan.String(value)
		if err != nil || name != "" && !isNamespace(name) {
			return cni.ConfigError(key, value, "a namespace")
		}
		if name != "" {
			n.Namespace = name
		}
		return nil
	},
	"confDir":                func(n *Networks, key string, value []byte) *api.Error { return path(&n.ConfDir, key, value) },
	"binDir":                 func(n *Networks, key string, value []byte) *api.Error { return path(&n.BinDir, key, value) },
	"readinessindicatorfile": func(n *Networks, key string, value []byte) *api.Error { return path(&n.Indicator, key, value) },
}

// reference reads the name or the path of a network.
func reference(key string, value []byte) (string, *api.Error) {
	text, err := scan.String(value)
	if err != nil || text == "" || !cni.IsShowable(text, maxReference) || !strings.HasPrefix(text, "/") && strings.Count(text, "/") > 1 {
		return "", cni.ConfigError(key, value, "a network: a name, namespace/name of a network attachment definition, or an absolute path")
	}
	return text, nil
}

// path reads an absolute path; "" leaves what is there.
func path(to *string, key string, value []byte) *api.Error {
	text, err := scan.String(value)
	if err != nil || text != "" && cni.CheckNetnsPath(text) != nil {
		return cni.ConfigError(key, value, "an absolute path")
	}
	if text != "" {
		*to = text
	}
	return nil
}

// isNamespace reports whether a namespace of Kubernetes can have a name (RFC 1123, a label).
func isNamespace(name string) bool {
	const alnum = "abcdefghijklmnopqrstuvwxyz0123456789"
	return name != "" && len(name) <= 63 && strings.Trim(name, alnum+"-") == "" && strings.Contains(alnum, name[:1]) && strings.Contains(alnum, name[len(name)-1:])
}
