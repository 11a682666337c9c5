package programs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/nettest"
)

// cgroups returns a cgroup's folders: one a hierarchy of version 1, and that of version 2.
func cgroups(t testing.TB, name string) (tops []string) {
	t.Helper()
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	nettest.Must(t, err)
	for _, procs := range append(hierarchies, "/sys/fs/cgroup/cgroup.procs") {
		if _, err := os.Stat(procs); err == nil {
			tops = append(tops, filepath.Join(filepath.Dir(procs), name))
		}
	}
	return tops
}

// MakeCgroup makes a cgroup in every hierarchy, until the test ends. Whatever is in it must have ended by then.
func MakeCgroup(t testing.TB, name string) {
	t.Helper()
	t.Cleanup(func() { RemoveCgroup(t, name) })
	for _, top := range cgroups(t, name) {
		nettest.Must(t, os.MkdirAll(top, 0o755))
	}
}

// RemoveCgroup removes a cgroup, and all that are in it, from every hierarchy.
func RemoveCgroup(t testing.TB, name string) {
	t.Helper()
	for _, top := range cgroups(t, name) {
		var groups []string
		filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		for _, g := range slices.Backward(groups) { // the innermost first
			if err := os.Remove(g); err != nil {
				t.Errorf("removing a cgroup: %v", err)
			}
		}
	}
}
