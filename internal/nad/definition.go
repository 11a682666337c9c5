package nad

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Network is what a definition or a file says of a network.
type Network struct {
	Definition   string // namespace/name of the definition; "": there is none
	Resource     string // the resource of which each attachment takes a device, such as intel.com/sriov; "": none
	Name         string // of the CNI configuration
	Version      string // cniVersion; 0.1.0 if absent
	DisableCheck bool
	DisableGC    bool
	Plugins      []Plugin // in the order of ADD
}

// ErrInFile says that a definition has no configuration: the configuration is in a file of Multus's confDir,
// as FindFile finds it by the definition's name (specification, section 3.4.1).
var ErrInFile = cni.Errorf(cni.CodeConfig, "the network attachment definition has no configuration", "it is in a file of the definition's name")

// ParseDefinition reads a definition. With ErrInFile, the returned network has what the object itself says.
func ParseDefinition(def *nadv1.NetworkAttachmentDefinition) (*Network, *api.Error) {
	label := def.Namespace + "/" + def.Name
	fail := func(e *api.Error) (*Network, *api.Error) {
		return nil, invalid("network attachment definition "+label, e)
	}
	if e := checkNamespace("namespace", def.Namespace); e != nil {
		return nil, invalid("network attachment definition", e)
	}
	if e := checkObjectName("name", def.Name); e != nil {
		return nil, invalid("network attachment definition", e)
	}
	resource := def.Annotations[KeyResource]
	if resource != "" && len(validation.IsQualifiedName(resource)) > 0 {
		return fail(cni.ConfigError(KeyResource, quoted(resource), "a resource's name such as intel.com/sriov"))
	}
	if strings.TrimSpace(def.Spec.Config) == "" {
		return &Network{Definition: label, Resource: resource}, ErrInFile
	}
	n, e := ParseConfig([]byte(def.Spec.Config), def.Name)
	if e != nil {
		return fail(e)
	}
	n.Definition, n.Resource = label, resource
	return n, nil
}

// ParseConfig reads a configuration: one plugin's, or a list of plugins. A configuration without a name
// gets the given one (specification, section 3.4.2); "" stands for no name.
func ParseConfig(raw []byte, name string) (*Network, *api.Error) {
	n, e := parseConfig(raw, name)
	if e == nil && len(n.Plugins) == 0 {
		e = cni.MissingError("type", "the plugin's file name; or plugins, a list of configurations")
	}
	if e != nil {
		return nil, e
	}
	return n, nil
}

// parseConfig is ParseConfig for files, beside which further plugins may lie: Plugins may be empty.
func parseConfig(raw []byte, name string) (*Network, *api.Error) {
	if len(raw) > maxText {
		return nil, tooLong(string(raw))
	}
	fields, err := scan.Object(raw)
	if err != nil {
		return nil, cni.DecodeError(err)
	}
	n := &Network{Name: name}
	if e := n.setName(fields); e != nil {
		return nil, e
	}
	kind, plugins := fields.Get("type"), fields.Get("plugins")
	if kind != nil && plugins != nil {
		return nil, cni.FieldError("plugins", plugins, "a configuration has either type or plugins")
	}
	var e *api.Error
	if kind != nil {
		if n.Version, e = oneVersion(fields); e != nil {
			return nil, e
		}
		p, e := parsePlugin("", raw)
		n.Plugins = []Plugin{p}
		return n, e
	}
	if n.Version, e = bestVersion(fields); e != nil {
		return nil, e
	}
	if n.DisableCheck, e = boolOf(fields, "disableCheck"); e != nil {
		return nil, e
	}
	if n.DisableGC, e = boolOf(fields, "disableGC"); e != nil {
		return nil, e
	}
	if plugins != nil {
		n.Plugins, e = parsePlugins(plugins)
	}
	return n, e
}

func (n *Network) setName(fields scan.Fields) *api.Error {
	if value := fields.Get("name"); value != nil {
		name, e := textOf("name", value)
		if e != nil {
			return e
		}
		if name != "" {
			n.Name = name
		}
	}
	if n.Name == "" {
		return cni.MissingError("name", "the network's name")
	}
	return cni.CheckNetworkName(n.Name)
}

// oneVersion returns cniVersion; the oldest version if it is absent.
func oneVersion(fields scan.Fields) (string, *api.Error) {
	v := ""
	if value := fields.Get("cniVersion"); value != nil {
		var e *api.Error
		if v, e = textOf("cniVersion", value); e != nil {
			return "", e
		}
	}
	if v == "" {
		return cni.Versions()[0], nil
	}
	return v, cni.CheckVersion("ADD", v)
}

// bestVersion returns the newest version that Berth speaks, of those that a list's cniVersions and
// cniVersion name (CNI 1.1, section 1).
func bestVersion(fields scan.Fields) (string, *api.Error) {
	const expected = `a list of versions, such as ["0.4.0", "1.0.0"]`
	value := fields.Get("cniVersions")
	if value == nil {
		return oneVersion(fields)
	}
	elements, err := scan.Array(value)
	if err != nil {
		return "", cni.ConfigError("cniVersions", value, expected)
	}
	known, best := cni.Versions(), -1
	for _, element := range elements {
		v, err := scan.String(element)
		if err != nil {
			return "", cni.ConfigError("cniVersions", element, expected)
		}
		if _, err := version.GreaterThan(v, cni.CurrentVersion); err != nil {
			return "", cni.ConfigError("cniVersions", element, expected)
		}
		best = max(best, slices.Index(known, v))
	}
	given, e := oneVersion(fields)
	switch {
	case e != nil && e.Code != cni.CodeVersion:
		return "", e
	case e == nil && fields.Get("cniVersion") != nil:
		best = max(best, slices.Index(known, given))
	}
	if best < 0 {
		return "", cni.Errorf(cni.CodeVersion, "cniVersions are not supported",
			"none of cniVersions is supported; supported are %s", list(known))
	}
	return known[best], nil
}

// boolOf returns a key's boolean, which libcni also takes as a text; false if the key is absent.
func boolOf(fields scan.Fields, key string) (bool, *api.Error) {
	switch value := fields.Get(key); strings.ToLower(string(value)) {
	case "", "false", `"false"`:
		return false, nil
	case "true", `"true"`:
		return true, nil
	default:
		return false, cni.ConfigError(key, value, "true or false")
	}
}

// Label is what the status calls a network: its definition, or its own name if it has none.
func (n *Network) Label() string {
	if n.Definition != "" {
		return n.Definition
	}
	return n.Name
}

// Plugin is one plugin of a network.
type Plugin struct {
	Type         string          // the plugin's file name
	Capabilities []string        // which the plugin declares, in order
	Config       json.RawMessage // as it was given
}
