package conform

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// volatile is what a reboot empties.
const volatile = "/run"

// store is where the state folders of a node are, for as long as it is judged.
type store struct {
	overlays []string // folders of the machine with an overlay of ours on them
	mounted  []string // all that is mounted, in its order
}

// openStore gives a node empty state folders: each is a tmpfs, and stands in an
// overlay over the nearest folder that the machine has. In the machine's own one,
// somebody who removes the state folder outside would take the mount away, and
// what plugins write then would go to the machine.
func openStore(dirs []string) (*store, error) {
	s := &store{}
	byBase := slices.Clone(dirs)
	slices.SortStableFunc(byBase, func(a, b string) int { return len(base(a)) - len(base(b)) })
	for _, dir := range byBase {
		if err := s.open(dir); err != nil {
			return nil, errors.Join(fmt.Errorf("making an empty %s: %w", dir, err), s.close())
		}
	}
	return s, nil
}

// base is the nearest folder above one that the machine has.
func base(dir string) string {
	for dir != "/" {
		dir = filepath.Dir(dir)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			break
		}
	}
	return dir
}

func (s *store) open(dir string) error {
	if within(dir, volatile) { // which is our own
		return os.MkdirAll(dir, 0o700)
	}
	if err := s.overlay(base(dir)); err != nil {
		if _, missing := os.Stat(dir); missing != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// mount -t tmpfs tmpfs DIR
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	s.mounted = append(s.mounted, dir)
	return nil
}

// overlay makes what is changed in a folder of the machine our own, unless it is
// already.
func (s *store) overlay(base string) error {
	if slices.ContainsFunc(s.overlays, func(over string) bool { return within(base, over) }) {
		return nil
	}
	if base == "/" {
		return errors.New("it would be in the root folder; make it first")
	}
	if err := cover(base, fmt.Sprint(len(s.mounted))); err != nil {
		return err
	}
	s.overlays, s.mounted = append(s.overlays, base), append(s.mounted, base)
	return nil
}

// cover mounts an overlay over a folder: what is changed in it is changed in a
// folder of that name in our own /run.
func cover(dir, name string) error {
	work := filepath.Join(volatile, "conform", name, "work")
	upper := filepath.Join(filepath.Dir(work), "upper")
	for _, d := range []string{work, upper} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// mount -t overlay overlay -o lowerdir=DIR,upperdir=...,workdir=... DIR
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mounting an overlay over %s: %w", dir, err)
	}
	return nil
}

// close gives the machine's own folders back.
func (s *store) close() error {
	var errs []error
	for i := len(s.mounted) - 1; i >= 0; i-- {
		// A daemon that was killed may still be going.
		errs = append(errs, unix.Unmount(s.mounted[i], unix.MNT_DETACH))
	}
	s.mounted, s.overlays = nil, nil
	return errors.Join(errs...)
}

// reboot empties what a reboot empties: all below /run but the folders of mounts
// and namespaces, which are ours.
func rebootRun() error {
	entries, err := os.ReadDir(volatile)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if path := filepath.Join(volatile, e.Name()); path != netnsDir && e.Name() != "conform" {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
