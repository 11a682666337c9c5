// Package delegate is the kind of a network that other CNI plugins make for a pod. A hold of this kind is one execution of a
// plugin list: Acquire is the list's ADD, and Release its DEL. The package's other kind is that of addresses which an IPAM plugin gives
// to a network of Berth's own (ipam.go). Both execute plugins in the same way.
//
// All that an execution needs is in the ledger before the first plugin runs, and each plugin's result as soon as it is known. So DEL and
// CHECK need no file of a network's configuration, no API server and no cache: whatever became of these since, the plugins get the
// configuration that they got for ADD. Libcni's own lists read and write a cache on the disk; that is why this package executes the
// plugins one by one (run.go), by libcni's package invoke.
//
// An address that the plugins of a network give to the pod is theirs. The ledger has no name for it.
package delegate

import (
	"fmt"
	"strings"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/kernel/ns"
)

// KindName is the name of the kind, in ledger records too.
const KindName = "delegate"

// MaxResult is how many bytes a plugin's result may have: those of several delegates, beside their configurations, fit into the
// ledger's record of a pod (ledger.MaxOwner).
const MaxResult = 64 << 10

// Spec is what the plugins of a list get, and what they have answered.
type Spec struct {
	ID        hold.ID  `json:"id"`             // the owner's
	Network   string   `json:"network"`        // the list's name
	Version   string   `json:"version"`        // the list's cniVersion
	Type      string   `json:"type,omitempty"` // of an IPAM plugin (IPAM), whose configuration is another plugin's; "": each configuration has its own
	Plugins   []string `json:"plugins"`        // the plugins' configurations, as ADD has them, without name, cniVersion and prevResult
	Container string   `json:"container"`
	Netns     ns.Ref   `json:"netns"`
	Ifname    string   `json:"ifname"`
	Args      string   `json:"args,omitempty"` // CNI_ARGS
	Folders   []string `json:"folders"`        // CNI_PATH, where the plugins are
	// DisableCheck says that the list wants no CHECK.
	DisableCheck bool `json:"disableCheck,omitempty"`
	// DisableGC says that the list wants no GC: others have attachments of the same network.
	DisableGC bool `json:"disableGC,omitempty"`
	// Run names the run of the agent that has made the spec (Options.Run): in that run, and in no other, the kind knows whether a
	// plugin has been executed for the spec.
	Run string `json:"run"`
	// Files are files of another program that tell of the network, such as an entry of libcni's cache. They are deleted once DEL has
	// succeeded. Absolute paths.
	Files []string `json:"files,omitempty"`
	// Result is what the last plugin that has succeeded printed, in the list's version; "": none has. It is discovered.
	Result string `json:"result,omitempty"`
	// Done says that all plugins have succeeded. It is discovered.
	Done bool `json:"done,omitempty"`
}

// Kind returns KindName.
func (s *Spec) Kind() string { return KindName }

// Executed returns the names of network and interface by which plugins know what they have made for a container.
func (s *Spec) Executed() (network, ifname string) { return s.Network, s.Ifname }

func (s *Spec) String() string {
	if s.Type != "" {
		return fmt.Sprintf("addresses of plugin %s for network %s as %s of %s (%s)", s.Type, s.Network, s.Ifname, s.Container, s.ID)
	}
	return fmt.Sprintf("network %s as %s of %s (%s)", s.Network, s.Ifname, s.Container, s.ID)
}

// placeless reports whether a network is made, and nobody knows in which network namespace.
func (s *Spec) placeless() bool { return s.Done && s.Netns.Path == "" }

// path is CNI_PATH.
func (s *Spec) path() string { return strings.Join(s.Folders, ":") }
