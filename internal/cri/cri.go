// Package cri reads what the container runtimes of a node say about CNI in their own
// configuration: where they look for plugins and networks, how many networks they take, and
// whether they need a plugin for lo. It changes nothing, and asks no daemon.
//
// Its files: cri (what a runtime is), find (which ones a node has), containerd, crio, toml
// (reading a file, with errors that name file and line), and network (what is in a runtime's folder
// of networks).
package cri

import (
	"path/filepath"
	"slices"
)

// The folders that a runtime looks into if its configuration names none.
const (
	DefaultBinDir  = "/opt/cni/bin"
	DefaultConfDir = "/etc/cni/net.d"
)

// byDefault is the origin of a value that no file gives.
const byDefault = "its default"

// Runtime is a container runtime of the node, with what its configuration says about CNI.
type Runtime struct {
	Name string `json:"name"`
	// Files is the configuration, in the order in which the runtime reads it. It is empty for a
	// runtime that has none, and goes by its defaults.
	Files   []string `json:"files"`
	BinDirs Dirs     `json:"binDirs"`
	ConfDir Dirs     `json:"confDir"` // a single folder
	// MaxConf is how many networks the runtime gives to each pod: the first ones of ConfDir by the
	// names of their files; 0: all.
	MaxConf int `json:"maxConf"`
	// Network is the name of the only network that the runtime takes; "": the first one.
	Network string `json:"network,omitempty"`
	// Handlers are the handlers of RuntimeClasses whose pods take networks of another folder.
	Handlers map[string]string `json:"handlers,omitempty"`
	// Loopback says that the runtime needs a plugin named loopback for each pod.
	Loopback bool `json:"loopback"`
	// Off says why Kubernetes cannot start pods by this runtime; "" if it can.
	Off string `json:"off,omitempty"`
}

// Dirs are folders, in the order in which the runtime looks into them.
type Dirs struct {
	Paths []string `json:"paths"`
	From  string   `json:"from"` // the key and the file that say so
}

// Conf returns the folder of networks.
func (r Runtime) Conf() string { return r.ConfDir.Paths[0] }

// Bin returns the folder of plugins into which a plugin belongs: the first folder that has the
// plugin, since the runtime takes that folder, or the first of all folders.
func (r Runtime) Bin(plugin string) string {
	for _, dir := range r.BinDirs.Paths {
		if exists(filepath.Join(dir, plugin)) {
			return dir
		}
	}
	return r.BinDirs.Paths[0]
}

// Has reports whether a plugin is in one of the runtime's folders.
func (r Runtime) Has(plugin string) bool {
	return slices.ContainsFunc(r.BinDirs.Paths, func(dir string) bool { return exists(filepath.Join(dir, plugin)) })
}

// clean makes folders comparable: CRI-O's paths end with a slash. A relative path is below /, where
// systemd starts a runtime.
func clean(dirs []string) (all []string) {
	for _, d := range dirs {
		if d = filepath.Join("/", d); !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}
