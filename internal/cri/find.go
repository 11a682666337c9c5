package cri

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	nameContainerd = "containerd"
	nameCRIO       = "cri-o"
	nameK3s        = "k3s"
	nameRKE2       = "rke2"
)

// kind is a runtime that Berth knows.
type kind struct {
	name     string
	config   string   // the path of its configuration
	programs []string // each of these tells that the runtime is there, even if the runtime has no configuration
	read     func(path string) (Runtime, error)
}

// kinds lists the runtimes. k3s and RKE2 bring a containerd of their own, and write its
// configuration when they start: of version 3, if it is containerd 2.
func (n Node) kinds() []kind {
	embedded := func(name string) kind {
		return kind{name, "/var/lib/rancher/" + name + "/agent/etc/containerd/config.toml", nil,
			func(path string) (Runtime, error) { return containerd(name, path, func() int { return 1 }) }}
	}
	return []kind{
		{nameContainerd, "/etc/containerd/config.toml", []string{"containerd"},
			func(path string) (Runtime, error) { return containerd(nameContainerd, path, n.major) }},
		{nameCRIO, "/etc/crio/crio.conf", []string{"crio"}, crio},
		embedded(nameK3s), embedded(nameRKE2),
	}
}

// Names returns the names of the runtimes that Berth knows.
func Names() (names []string) {
	for _, k := range (Node{}).kinds() {
		names = append(names, k.name)
	}
	return names
}

// Node is the node whose runtimes are looked for.
type Node struct {
	Host string // prefix of all paths; "" on a node
}

// Find returns the runtimes of the node. For a runtime without a configuration it returns the
// defaults. If a runtime's configuration cannot be read, Find returns the other runtimes, and the
// error.
func (n Node) Find() (all []Runtime, err error) {
	for _, k := range n.kinds() {
		if !n.hasKind(k) {
			continue
		}
		r, e := k.read(n.Host + k.config)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		all = append(all, r)
	}
	return all, err
}

// hasKind reports whether a runtime's configuration or program is on the node.
func (n Node) hasKind(k kind) bool {
	path := n.Host + k.config
	return exists(path) || exists(path+".d") || slices.ContainsFunc(k.programs, n.has)
}

// Has reports whether a runtime is on the node: it has a configuration, or its program is there.
func (n Node) Has(r Runtime) bool {
	return len(r.Files) > 0 || slices.ContainsFunc(n.kinds(), func(k kind) bool { return k.name == r.Name && n.hasKind(k) })
}

// Read returns a runtime of the node by its name, or by NAME=FILE with a configuration of its own.
// The runtime need not be there.
func (n Node) Read(arg string) (Runtime, error) {
	name, file, given := strings.Cut(arg, "=")
	for _, k := range n.kinds() {
		if k.name != name && (name != "crio" || k.name != nameCRIO) {
			continue
		}
		path := n.Host + k.config
		if given {
			if path = file; !exists(path) {
				return Runtime{}, fmt.Errorf("there is no %s", path)
			}
		}
		return k.read(path)
	}
	return Runtime{}, fmt.Errorf("%q is no runtime that Berth knows: expected %s", name, strings.Join(Names(), ", "))
}

// programDirs are the folders in which a runtime's program lies.
var programDirs = []string{"/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/bin"}

// program returns the path of a runtime's program; "" if it is not there.
func (n Node) program(name string) string {
	for _, dir := range programDirs {
		if path := filepath.Join(n.Host+dir, name); exists(path) {
			return path
		}
	}
	return ""
}

func (n Node) has(program string) bool { return n.program(program) != "" }

// askWithin is how long a program may take to say its version.
const askWithin = 5 * time.Second

// major returns containerd's major version, by asking the program: a configuration of version 2 may
// be for containerd 1 or 2. Without an answer major returns 1, for which configurations of version 2
// are made.
func (n Node) major() int {
	path := n.program("containerd")
	if path == "" {
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return 1
	}
	major, err := majorOf(string(out))
	if err != nil {
		return 1
	}
	return major
}
