package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever is in a configuration, the package reads the configuration, or refuses it with a path. The
// runtime always has folders for plugins and networks, with absolute paths.
func FuzzRead(f *testing.F) {
	for _, test := range containerds {
		for _, text := range test.files {
			f.Add([]byte(text))
		}
	}
	f.Add([]byte("[crio.network]\nplugin_dirs = ['', '/x/']\nnetwork_dir = 'y'\n"))
	path := filepath.Join(f.TempDir(), "config")
	f.Fuzz(func(t *testing.T, text []byte) {
		must(t, os.WriteFile(path, text, 0o600))
		for _, read := range []func() (Runtime, error){
			func() (Runtime, error) { return containerd("containerd", path, func() int { return 1 }) },
			func() (Runtime, error) { return containerd("containerd", path, func() int { return 2 }) },
			func() (Runtime, error) { return crio(path) },
		} {
			r, err := read()
			if err != nil {
				if !strings.Contains(err.Error(), "/") {
					t.Errorf("the error names no path: %v", err)
				}
				continue
			}
			for _, d := range append(r.BinDirs.Paths, r.Conf()) {
				if !filepath.IsAbs(d) {
					t.Errorf("%q is a folder of %+v", d, r)
				}
			}
			if r.Bin("x") == "" {
				t.Errorf("no folder: %+v", r)
			}
		}
	})
}
