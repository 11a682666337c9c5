package cri

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// The names of containerd's CRI plugin in configurations of version 1, of version 2, and from version
// 3 on.
const (
	criV1 = "cri"
	criV2 = "io.containerd.grpc.v1.cri"
	criV3 = "io.containerd.cri.v1.runtime"
)

// containerdFile is the part of a file of containerd's configuration that matters here.
type containerdFile struct {
	Version  int      `toml:"version"` // of the file's form; a file without a version has version 1
	Imports  []string `toml:"imports"`
	Disabled []string `toml:"disabled_plugins"`
	Plugins  struct {
		V1 *criTable `toml:"cri"`
		V2 *criTable `toml:"io.containerd.grpc.v1.cri"`
		V3 *criTable `toml:"io.containerd.cri.v1.runtime"`
	} `toml:"plugins"`
}

type criTable struct {
	CNI        cniTable `toml:"cni"`
	Containerd struct {
		Runtimes map[string]struct {
			ConfDir string `toml:"cni_conf_dir"`
		} `toml:"runtimes"`
	} `toml:"containerd"`
}

// cniTable is the table cni of the CRI plugin; nil where a file has no such key.
type cniTable struct {
	BinDir     *string  `toml:"bin_dir"`
	BinDirs    []string `toml:"bin_dirs"` // from containerd 2.1 on
	ConfDir    *string  `toml:"conf_dir"`
	MaxConfNum *int     `toml:"max_conf_num"`
	Internal   *bool    `toml:"use_internal_loopback"` // from containerd 2.0 on
}

// setting is the table that counts, with the files that its values are from.
type setting struct {
	cniTable
	binFrom, confFrom string
	handlers          map[string]string
}

// containerd reads the configuration that begins with a file, which need not be there. major returns
// the major version of the program: containerd 1 and containerd 2 read the same files differently.
func containerd(name, path string, major func() int) (Runtime, error) {
	r := Runtime{Name: name, Files: []string{}, MaxConf: 1, Loopback: true}
	var s setting
	if exists(path) {
		files, err := containerdFiles(path, major)
		if err != nil {
			return r, err
		}
		for _, f := range files {
			r.Files = append(r.Files, f.path)
			for _, id := range f.Disabled {
				if id == criV2 || id == criV3 || id == criV1 && f.Version < 2 {
					r.Off = fmt.Sprintf("disabled_plugins in %s has %q", f.path, id)
				}
			}
			s.add(f)
		}
	}
	if s.BinDir != nil && *s.BinDir != "" && len(s.BinDirs) > 0 {
		return r, fmt.Errorf("%s: bin_dir and bin_dirs are both set (%s), which containerd refuses", path, s.binFrom)
	}
	r.BinDirs = Dirs{[]string{DefaultBinDir}, byDefault}
	switch {
	case len(s.BinDirs) > 0:
		r.BinDirs = Dirs{clean(s.BinDirs), s.binFrom}
	case s.BinDir != nil && *s.BinDir != "":
		r.BinDirs = Dirs{clean([]string{*s.BinDir}), s.binFrom}
	}
	r.ConfDir = Dirs{[]string{DefaultConfDir}, byDefault}
	if s.ConfDir != nil && *s.ConfDir != "" {
		r.ConfDir = Dirs{clean([]string{*s.ConfDir}), s.confFrom}
	}
	if s.MaxConfNum != nil {
		r.MaxConf = *s.MaxConfNum
	}
	r.Handlers = s.handlers
	if s.Internal != nil {
		r.Loopback = !*s.Internal
	}
	return r, nil
}

// criFile is a file of the configuration, with the only table of the file that counts.
type criFile struct {
	containerdFile
	path  string
	major int       // of the containerd that reads it
	table *criTable // nil if the file says nothing about CRI
}

// containerdFiles reads a file, the files that it imports, and the files that these import, in
// containerd's order: all imports of one file come before their own imports. Each file is read once.
func containerdFiles(first string, major func() int) (all []criFile, err error) {
	seen, program := map[string]bool{}, 0
	for pending := []string{first}; len(pending) > 0; pending = pending[1:] {
		f := criFile{path: pending[0]}
		if seen[f.path] {
			continue
		}
		seen[f.path] = true
		if err := read(f.path, &f.containerdFile); err != nil {
			return nil, fmt.Errorf("reading containerd's configuration: %w", err)
		}
		if program == 0 { // the first file may tell the program's version: only containerd 2 takes version 3
			if program = 2; f.Version < 3 {
				program = major()
			}
		}
		f.major = program
		f.table = f.choose()
		imports, err := f.imported()
		if err != nil {
			return nil, fmt.Errorf("reading containerd's configuration: %s: %w", f.path, err)
		}
		all, pending = append(all, f), append(pending, imports...)
	}
	return all, nil
}

// choose returns the table that containerd goes by. In a file of version 2, containerd 2 also knows
// the name of version 3. containerd 2.1.4 takes over no folders from a file of version 1.
func (f criFile) choose() *criTable {
	switch {
	case f.major >= 2 && f.Version == 2:
		return cmp.Or(f.Plugins.V2, f.Plugins.V3)
	case f.major >= 2:
		return f.Plugins.V3
	case f.Version == 2:
		return f.Plugins.V2
	case f.Version < 2:
		return f.Plugins.V1
	}
	return nil
}

// imported returns the paths of the files that a file imports. A relative path is relative to the
// file's folder. But containerd 1 takes a relative pattern as relative to containerd's working folder,
// which is / under systemd.
func (f criFile) imported() (all []string, err error) {
	for _, path := range f.Imports {
		pattern := strings.Contains(path, "*")
		switch {
		case filepath.IsAbs(path):
		case pattern && f.major < 2:
			path = "/" + path
		default:
			path = filepath.Join(filepath.Dir(f.path), path)
		}
		if !pattern {
			all = append(all, filepath.Clean(path))
			continue
		}
		found, err := filepath.Glob(path)
		if err != nil {
			return nil, fmt.Errorf("imports has %q: %w", path, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// add lets a file's table count over the tables of earlier files. For containerd 1 the table replaces
// all that earlier files said about the CRI plugin. containerd 2 goes key by key, and makes bin_dirs
// of the bin_dir of a file of version 2.
func (s *setting) add(f criFile) {
	if f.table == nil {
		return
	}
	if f.major < 2 {
		*s = setting{}
	}
	t := f.table.CNI
	switch {
	case t.BinDir == nil:
	case f.major >= 2 && f.Version == 2 && *t.BinDir != "":
		s.BinDirs, s.binFrom = []string{*t.BinDir}, "bin_dir in "+f.path
	default:
		s.BinDir, s.binFrom = t.BinDir, "bin_dir in "+f.path
	}
	if t.ConfDir != nil {
		s.ConfDir, s.confFrom = t.ConfDir, "conf_dir in "+f.path
	}
	if t.MaxConfNum != nil {
		s.MaxConfNum = t.MaxConfNum
	}
	for name, h := range f.table.Containerd.Runtimes {
		if h.ConfDir != "" {
			if s.handlers == nil {
				s.handlers = map[string]string{}
			}
			s.handlers[name] = clean([]string{h.ConfDir})[0]
		}
	}
	if f.major < 2 { // containerd 1 knows no other keys
		return
	}
	if len(t.BinDirs) > 0 {
		s.BinDirs, s.binFrom = t.BinDirs, "bin_dirs in "+f.path
	}
	if t.Internal != nil {
		s.Internal = t.Internal
	}
}

// majorOf returns the major version in what `containerd --version` prints.
func majorOf(out string) (int, error) {
	for _, word := range strings.Fields(out) {
		var major, minor int
		if n, _ := fmt.Sscanf(strings.TrimPrefix(word, "v"), "%d.%d", &major, &minor); n == 2 {
			return major, nil
		}
	}
	return 0, errors.New("no version in what it prints")
}
