// Package former reads what a node's former CNI has left about the pods that it attached, so that these pods can be adopted
// (issue 13): libcni's cache, which every runtime's libcni writes after ADD, and Multus's files. The package only reads and parses.
//
// Runtimes keep the cache below /var/lib/cni: containerd's go-cni and CRI-O's ocicni leave libcni.CacheDir as it is (go-cni, opts.go,
// WithPluginDir; ocicni 0.4.3, ocicni.go, getCachedNetworkInfo). Kubelets that drove Docker, and cri-dockerd after them, keep it below
// /var/lib/cni/cache (--cni-cache-dir, kubernetes/kubernetes#78908; Kubernetes 1.23 was the last).
//
// Of a pod that Multus attached, the runtime's cache has one entry, of type multus or multus-shim. Nobody adopts that entry: it stands
// for the delegates. Each delegate is an attachment of its own, which Multus's libcni has written to another cache, in Multus's cniDir;
// that entry is the one to adopt. Multus's scratch file, CNIDIR/CONTAINER, says in which order Multus executed the delegates. It also has
// what the caches lack: delegates whose ADD was cut short, and the plugins that lay beside a list's file.
//
// Limit: libcni's cache has a list as its file had it, without the plugins that lay beside that file (libcni 1.3, NetworkConfFromFile).
// Where Multus did not write them down, nobody can tell that there were any.
package former

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berth-net/berth/api"
)

// OwnType is the type of Berth's own plugin.
const OwnType = "berth-cni"

// Attachment is an attachment of a pod to a network, as a former CNI's ADD made it.
type Attachment struct {
	Container string
	Ifname    string
	Network   string
	Version   string // cniVersion of the list; 0.1.0 if it had none
	// Plugins are the plugins' configurations as ADD had them, in the order of ADD, with what libcni added for their capabilities, and
	// without name, cniVersion and prevResult, which Network, Version and Result say.
	Plugins      []json.RawMessage
	Args         string // CNI_ARGS
	Netns        string // the path of the pod's network namespace, which may be gone; "": unknown
	DisableCheck bool
	// Result is ADD's result in Version, as libcni gives it to CHECK and DEL; nil: there is none, and NoResult says why.
	Result   json.RawMessage
	NoResult string
	Pod      *api.Pod // of which CNI_ARGS tell; nil: of none
	Path     string   // of the file that says this, below the root
	// Beside are files that tell of the whole container, and that nobody needs once all its attachments are gone: Multus's
	// scratch file, and the runtime's entry for Multus. The container's first attachment has them.
	Beside []string
}

// Problem is a file, or a part of one, of which nobody can tell which attachment it speaks of, or how to release that.
type Problem struct {
	Path   string // below the root
	Reason string
}

func (p Problem) String() string {
	return fmt.Sprintf("%s: %s", printable(p.Path), p.Reason)
}

// Own reports whether Berth's own plugin made the attachment: then no former CNI did.
func (a Attachment) Own() bool {
	types := a.Types()
	return len(types) > 0 && types[0] == OwnType
}

// Types returns the plugins' types, in the order of ADD.
func (a Attachment) Types() []string {
	var types []string
	for _, raw := range a.Plugins {
		var plugin map[string]json.RawMessage
		var name string
		if json.Unmarshal(raw, &plugin) == nil {
			_ = json.Unmarshal(plugin["type"], &name) // Read has checked it
		}
		types = append(types, name)
	}
	return types
}

// String describes the attachment to people: pod, container, interface, network and plugins.
func (a Attachment) String() string {
	pod := "unknown pod"
	if a.Pod != nil {
		pod = a.Pod.Namespace + "/" + a.Pod.Name
	}
	const short = 12 // characters of a container's ID, as runtimes' tools show it
	return fmt.Sprintf("%s, container %s: %s of network %s, by %s", pod, a.Container[:min(short, len(a.Container))], a.Ifname, a.Network,
		strings.Join(a.Types(), ", "))
}
