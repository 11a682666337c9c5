package main

import (
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"strings"
)

// versions returns which versions of others' plugins are judged, as Go has written them into the programs: one of the reference plugins stands for
// all of them.
func (in folders) versions() (all []string, err error) {
	for _, program := range []string{"bridge", "multus", "flannel"} {
		info, err := buildinfo.ReadFile(filepath.Join(in.peers, program))
		if err != nil {
			return nil, fmt.Errorf("reading the version of a plugin: %w", err)
		}
		all = append(all, fmt.Sprintf("%s of %s %s", program, strings.TrimPrefix(info.Main.Path, "github.com/"), info.Main.Version))
	}
	return all, nil
}
