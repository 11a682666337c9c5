package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/internal/cri"
	"github.com/berth-net/berth/internal/root"
)

// places says for which runtimes the plugin is, and where they look.
type places struct {
	runtimes        []string // NAME or NAME=FILE; none: all that are found
	binDir, confDir string   // "": as the runtimes' configuration says
	name            string   // of the network
}

// placeFlags are the flags with which install and uninstall say what to do in which places.
type placeFlags struct {
	places
	dryRun bool
	force  bool
	given  func(flag string) bool // on the command line
}

// register gives a command the flags. force names the cases in which the command refuses to go
// on without --force.
func (f *placeFlags) register(c *cobra.Command, force string) {
	runtimeFlags(c, &f.places)
	fl := c.Flags()
	fl.StringVar(&f.name, "name", defaultName, "the network's name; the file is 10-NAME.conflist")
	fl.BoolVar(&f.dryRun, "dry-run", false, "only show what would be done")
	fl.BoolVar(&f.force, "force", false, "go on even if "+force)
	f.given = fl.Changed
}

// runtimeFlags gives a command the flags that say where runtimes look.
func runtimeFlags(c *cobra.Command, f *places) {
	c.Flags().StringArrayVar(&f.runtimes, "runtime", nil,
		"a container runtime, or with =FILE its configuration: "+strings.Join(cri.Names(), ", ")+"; repeatable (default: all that are found)")
	c.Flags().StringVar(&f.binDir, "bin-dir", "", "folder in which the runtime looks for CNI plugins (default: as its configuration says)")
	c.Flags().StringVar(&f.confDir, "conf-dir", "", "folder in which the runtime looks for CNI configurations (default: as its configuration says)")
	for _, name := range []string{"bin-dir", "conf-dir"} {
		mustComplete(c.MarkFlagDirname(name))
	}
	mustComplete(c.RegisterFlagCompletionFunc("runtime", cobra.FixedCompletions(cri.Names(), cobra.ShellCompDirectiveNoFileComp)))
}

// usualDirs are the folders in which runtimes usually look for plugins.
var usualDirs = []string{cri.DefaultBinDir, "/usr/lib/cni", "/usr/libexec/cni"}

// target is a runtime for which files are put in place.
type target struct {
	cri.Runtime
	bin, conf string // folders
}

type targets []target

// strangers warns if files are put where most runtimes look, because the node has no runtime that
// could say where it looks.
func (f places) strangers(all targets) []string {
	if f.binDir != "" && f.confDir != "" || slices.ContainsFunc(all, func(r target) bool { return r.Name != "" }) {
		return nil
	}
	return []string{"no container runtime that Berth knows is here: once there is one, run berth install again, since it may look elsewhere"}
}

// who names the runtime.
func (t target) who() string {
	if t.Name == "" {
		return "a runtime such as containerd"
	}
	return t.Name
}

// targets returns the runtimes for which files are put in place, and warnings about these runtimes.
// If both folders are given, nothing depends on what runtimes say about them.
func (f places) targets() (all targets, warnings []string, err error) {
	runtimes, warnings, err := f.found()
	if err != nil {
		return nil, nil, err
	}
	for _, r := range runtimes {
		if r.BinDirs, err = given(f.binDir, "--bin-dir", r.BinDirs); err != nil {
			return nil, nil, err
		}
		if r.ConfDir, err = given(f.confDir, "--conf-dir", r.ConfDir); err != nil {
			return nil, nil, err
		}
		all = append(all, target{r, r.Bin(plugin), r.Conf()})
	}
	return all, warnings, nil
}

// given returns the folder that a flag gives, or else what a runtime says.
func given(dir, flag string, says cri.Dirs) (cri.Dirs, error) {
	if dir == "" {
		return says, nil
	}
	dir, err := filepath.Abs(dir)
	return cri.Dirs{Paths: []string{dir}, From: flag}, err
}

// unnamed stands for a runtime of which nothing is known: it has the folders and the needs of most
// runtimes.
func unnamed(from string) cri.Runtime {
	return cri.Runtime{
		Files: []string{}, MaxConf: 1, Loopback: true,
		BinDirs: cri.Dirs{Paths: []string{cri.DefaultBinDir}, From: from},
		ConfDir: cri.Dirs{Paths: []string{cri.DefaultConfDir}, From: from},
	}
}

// found returns the runtimes that the flags name or, if they name none, that are on the node and
// can start pods.
func (f places) found() (all []cri.Runtime, warnings []string, err error) {
	if len(f.runtimes) > 0 {
		for _, arg := range f.runtimes {
			r, err := (cri.Node{}).Read(arg)
			if err != nil {
				return nil, nil, fmt.Errorf("--runtime: %w", err)
			}
			all = append(all, r)
			if !(cri.Node{}).Has(r) {
				warnings = append(warnings, fmt.Sprintf("%s is not on this node: its folders are those of its defaults; once it is here, run berth install again", r.Name))
			}
		}
		return all, warnings, nil
	}
	if f.binDir != "" && f.confDir != "" {
		return []cri.Runtime{unnamed("")}, nil, nil
	}
	here, err := cri.Node{}.Find()
	if err != nil {
		return nil, nil, fmt.Errorf("%w (nothing is changed; --bin-dir and --conf-dir do without it)", err)
	}
	for _, r := range here {
		if r.Off == "" {
			all = append(all, r)
			continue
		}
		warnings = append(warnings, fmt.Sprintf("Kubernetes cannot start pods by %s: %s", r.Name, r.Off))
	}
	if len(all) == 0 {
		all = here
	}
	if len(all) == 0 {
		all = []cri.Runtime{unnamed("no runtime that Berth knows is here, and most look there")}
	}
	return all, warnings, nil
}

// folders returns the folders into which the first runtime looks, for doctor and bundle to look into.
// If nobody can tell these folders, folders returns those of most runtimes, and blind says why.
func (f places) folders() (binDir, confDir string, blind error) {
	to, _, err := f.targets()
	if err != nil {
		return cmp.Or(f.binDir, cri.DefaultBinDir), cmp.Or(f.confDir, cri.DefaultConfDir), err
	}
	if f.strangers(to) != nil {
		blind = errors.New("no runtime that Berth knows is here")
	}
	return to[0].bin, to[0].conf, blind
}

// binDirs returns the folders of plugins, each once.
func (t targets) binDirs() (dirs []string) {
	for _, r := range t {
		if !slices.Contains(dirs, r.bin) {
			dirs = append(dirs, r.bin)
		}
	}
	return dirs
}

// confPaths returns the paths of a network's configuration, each once.
func (t targets) confPaths(name string) (paths []string) {
	for _, r := range t {
		if path := (places{name: name}).confPath(r.conf); !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

func (f places) confPath(dir string) string { return filepath.Join(dir, "10-"+f.name+".conflist") }

// runtimeView is where a runtime looks, and why Berth thinks so.
type runtimeView struct {
	cri.Runtime
	BinDir string `json:"binDir"` // the one of the runtime's folders in which the plugin is, or will be
}

func (t targets) views() (all []runtimeView) {
	for _, r := range t {
		all = append(all, runtimeView{r.Runtime, r.bin})
	}
	return all
}

func (a *app) showRuntimes(all []runtimeView) {
	t := newTable("RUNTIME", "LOOKS FOR", "IN", "BECAUSE OF")
	for _, r := range all {
		t.row(r.Name, "plugins", r.BinDir, r.BinDirs.From)
		t.row(r.Name, "networks", r.Conf(), r.ConfDir.From)
	}
	a.table(t)
}

// rivals says which other configurations in a runtime's folder count beside the configuration at
// path, or instead of it.
func rivals(r cri.Runtime, path, name string) (warnings []string) {
	who := "the runtime"
	if r.Name != "" {
		who = r.Name
	}
	for _, handler := range slices.Sorted(maps.Keys(r.Handlers)) {
		if dir := r.Handlers[handler]; dir != filepath.Dir(path) {
			warnings = append(warnings, fmt.Sprintf("pods of the runtime handler %s take the networks of %s (cni_conf_dir); for those, too: berth install --conf-dir %s", handler, dir, dir))
		}
	}
	if r.Network != "" {
		if r.Network != name {
			warnings = append(warnings, fmt.Sprintf("%s takes the network %s alone (cni_default_network), not %s: no pod becomes Berth's", who, r.Network, name))
		}
		return warnings
	}
	before, after := others(path)
	switch taken := r.MaxConf; {
	case len(before) > 0 && taken > 0 && len(before) >= taken:
		var moves []string
		for _, other := range before {
			moves = append(moves, fmt.Sprintf("mv %s %s.off", other, other))
		}
		warnings = append(warnings, fmt.Sprintf("%s takes %s before %s: no pod becomes Berth's; %s",
			who, strings.Join(named(before), ", "), filepath.Base(path), strings.Join(moves, "; ")))
	case len(before) > 0:
		warnings = append(warnings, fmt.Sprintf("%s attaches pods to %s first: Berth's network is not their first one (max_conf_num)", who, strings.Join(named(before), ", ")))
	case len(after) > 0 && taken != 1:
		if taken > 0 {
			after = after[:min(len(after), taken-1)]
		}
		warnings = append(warnings, fmt.Sprintf("%s attaches pods to %s, too (max_conf_num)", who, strings.Join(named(after), ", ")))
	}
	return warnings
}

// others returns the configurations in a configuration's folder, in the order of runtimes: by
// name, those before it and those after it.
func others(path string) (before, after []string) {
	entries, _ := os.ReadDir(filepath.Dir(path)) // sorted by name; none if the folder is not there
	for _, e := range entries {
		other := filepath.Join(filepath.Dir(path), e.Name())
		switch {
		case e.IsDir() || !isConf(other):
		case other < path:
			before = append(before, other)
		case other > path:
			after = append(after, other)
		}
	}
	return before, after
}

// named adds the networks' names to the paths of configurations.
func named(paths []string) (all []string) {
	for _, path := range paths {
		var conf struct{ Name string }
		raw, err := root.ReadFile(path)
		if err == nil && json.Unmarshal(raw, &conf) == nil && conf.Name != "" {
			path += fmt.Sprintf(" (network %s)", conf.Name)
		}
		all = append(all, path)
	}
	return all
}

// isConf reports whether runtimes take a file for a configuration, by its name.
func isConf(path string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(path))
}
