// Package nad reads what users of Kubernetes ask for by annotations and network attachment definitions:
// the Network Plumbing Working Group's multi-network specification 1.3, as Multus 4.2 practises it. It also
// writes the annotation that tells users what became of it.
//
// The package knows neither kernel nor API server: it turns texts into networks, selections and
// configurations of plugins, and CNI results into a status.
package nad

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/cni/scan"
)

// Annotations. A pod has all but KeyResource, which a definition has.
const (
	KeyNetworks = "k8s.v1.cni.cncf.io/networks"       // the networks beside the default one
	KeyDefault  = "v1.multus-cni.io/default-network"  // the network in the place of the default one
	KeyStatus   = "k8s.v1.cni.cncf.io/network-status" // what Status writes
	KeyResource = "k8s.v1.cni.cncf.io/resourceName"   // the resource of which each attachment takes a device
)

// Bounds of what is read.
const (
	// MaxNetworks is how many networks an annotation may ask for. The kernel has no such bound. With so many,
	// each network's entry in the status has 4 KiB of what Kubernetes lets an object's annotations have.
	MaxNetworks = 64
	maxText     = 64 << 10 // bytes of an annotation, or of a configuration: several fit into the ledger's record of a pod (ledger.MaxOwner)
	maxStatus   = 256 << 10
	maxPlugins  = 32
	maxIPs      = 32
	maxDevice   = 253 // bytes of a device's ID; Kubernetes sets no bound
)

// invalid makes the errors about one annotation or definition of those about its keys: `where` says
// which annotation or definition it is.
func invalid(where string, e *api.Error) *api.Error {
	return cni.Errorf(e.Code, "invalid "+where, "%s", e.Details)
}

// tooLong answers a text with more than maxText bytes.
func tooLong(text string) *api.Error {
	return cni.Errorf(cni.CodeConfig, "", "it has %d bytes; expected at most %d", len(text), maxText)
}

// quoted is a text as JSON: errors show given values so.
func quoted(text string) []byte { return scan.AppendString(nil, text) }

// textOf reads a field that is a string.
func textOf(key string, value []byte) (string, *api.Error) {
	text, err := scan.String(value)
	if err != nil {
		return "", cni.ConfigError(key, value, "a string")
	}
	return text, nil
}

// checkObjectName checks the name of a definition.
func checkObjectName(key, name string) *api.Error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return cni.ConfigError(key, quoted(name), "a DNS-1123 name: at most 253 lower case letters, digits, '-' and '.', beginning and ending with a letter or digit")
	}
	return nil
}

// checkNamespace checks the name of a namespace.
func checkNamespace(key, name string) *api.Error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return cni.ConfigError(key, quoted(name), "a DNS-1123 label: at most 63 lower case letters, digits and '-', beginning and ending with a letter or digit")
	}
	return nil
}

// list joins words for a message: "a", "a and b", "a, b and c".
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	words = slices.Clone(words)
	last := len(words) - 1
	return fmt.Sprintf("%s and %s", strings.Join(words[:last], ", "), words[last])
}
