package conform

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// volatile is what a reboot empties.
const volatile = "/run"

// store is where the state folders of a node are, for as long as it is judged.
type store struct{ mounted []string }

// openStore gives a node empty state folders: each is a tmpfs. One that the
// machine lacks is made in an overlay over the nearest folder that is there, so
// that the machine keeps lacking it.
func openStore(dirs []string) (*store, error) {
	s := &store{}
	for _, dir := range dirs {
		if err := s.open(dir); err != nil {
			return nil, errors.Join(fmt.Errorf("making an empty %s: %w", dir, err), s.close())
		}
	}
	return s, nil
}

func (s *store) open(dir string) error {
	if within(dir, volatile) { // which is our own
		return os.MkdirAll(dir, 0o700)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.overlay(dir)
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("it is no folder")
	}
	// mount -t tmpfs tmpfs DIR
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	s.mounted = append(s.mounted, dir)
	return nil
}

// overlay makes a folder that the machine lacks.
func (s *store) overlay(dir string) error {
	base := dir
	for {
		base = filepath.Dir(base)
		if info, err := os.Stat(base); err == nil && info.IsDir() {
			break
		}
	}
	if base == "/" {
		return errors.New("it would be in the root folder; make it first")
	}
	work := filepath.Join(volatile, "conform", fmt.Sprint(len(s.mounted)), "work")
	upper := filepath.Join(filepath.Dir(work), "upper")
	for _, d := range []string{work, upper} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// mount -t overlay overlay -o lowerdir=BASE,upperdir=...,workdir=... BASE
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", base, upper, work)
	if err := unix.Mount("overlay", base, "overlay", 0, options); err != nil {
		return fmt.Errorf("mounting an overlay over %s: %w", base, err)
	}
	s.mounted = append(s.mounted, base)
	return os.MkdirAll(dir, 0o700)
}

// close gives the machine's own folders back.
func (s *store) close() error {
	var errs []error
	for i := len(s.mounted) - 1; i >= 0; i-- {
		// A daemon that was killed may still be going.
		errs = append(errs, unix.Unmount(s.mounted[i], unix.MNT_DETACH))
	}
	s.mounted = nil
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
