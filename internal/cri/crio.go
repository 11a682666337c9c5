package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// crioFile is the part of a file of CRI-O's configuration that matters here; nil where a file has
// no such key.
type crioFile struct {
	CRIO struct {
		Network struct {
			NetworkDir *string  `toml:"network_dir"`
			PluginDirs []string `toml:"plugin_dirs"`
			PluginDir  *string  `toml:"plugin_dir"` // deprecated: looked into after the others
			Default    *string  `toml:"cni_default_network"`
		} `toml:"network"`
	} `toml:"crio"`
}

// crio reads CRI-O's configuration: a file, and then the files of a folder in the order of their
// names. The last file that has a key counts. CRI-O sets lo up by itself.
func crio(path string) (Runtime, error) {
	r := Runtime{
		Name: nameCRIO, Files: []string{}, MaxConf: 1,
		BinDirs: Dirs{[]string{DefaultBinDir}, byDefault}, ConfDir: Dirs{[]string{DefaultConfDir}, byDefault},
	}
	files, err := crioFiles(path)
	if err != nil {
		return r, err
	}
	var also []string
	for _, path := range files {
		var f crioFile
		if err := read(path, &f); err != nil {
			return r, fmt.Errorf("reading CRI-O's configuration: %w", err)
		}
		r.Files = append(r.Files, path)
		n := f.CRIO.Network
		if n.PluginDirs != nil {
			r.BinDirs = Dirs{n.PluginDirs, "plugin_dirs in " + path}
		}
		if n.PluginDir != nil && *n.PluginDir != "" {
			also = []string{*n.PluginDir}
		}
		if n.NetworkDir != nil && *n.NetworkDir != "" {
			r.ConfDir = Dirs{clean([]string{*n.NetworkDir}), "network_dir in " + path}
		}
		if n.Default != nil {
			r.Network = *n.Default
		}
	}
	r.BinDirs.Paths = clean(slices.Concat(r.BinDirs.Paths, also))
	if len(r.BinDirs.Paths) == 0 {
		r.BinDirs = Dirs{[]string{DefaultBinDir}, byDefault}
	}
	return r, nil
}

// crioFiles returns the files of the configuration that are there, in CRI-O's order.
func crioFiles(path string) (all []string, err error) {
	if exists(path) {
		all = append(all, path)
	}
	err = filepath.WalkDir(path+".d", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return all, err
}
