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

// kept are folders of the machine that plugins write into beside their state
// folders, and that stay as they are.
var kept = []string{"/dev/shm", "/etc", "/tmp", "/var/lib", "/var/log", "/var/tmp"}

// pins are eBPF programs and maps that have a path.
const pins = "/sys/fs/bpf"

// store is what can be written on a node, for as long as it is judged, though all
// of the machine's folders are read-only.
type store struct {
	mounted []string         // in its order
	pinned  bool             // an empty file system for pins is mounted too
	denied  map[string]error // why a folder cannot have an overlay
}

// openStore gives a node empty state folders: each is a tmpfs, and stands in an
// overlay over the nearest folder that the machine has, since in the machine's own
// one somebody who removes the state folder outside would take the mount away. The
// kept folders have overlays too. One that cannot have any (the kernel lacks them, or
// it is on two already) stays read-only.
func openStore(dirs []string) (*store, error) {
	s := &store{denied: map[string]error{}}
	for _, dir := range toCover(dirs) {
		if err := cover(dir, fmt.Sprint(len(s.mounted))); err != nil {
			s.denied[dir] = err
		} else {
			s.mounted = append(s.mounted, dir)
		}
	}
	for _, dir := range slices.Sorted(slices.Values(dirs)) { // what is around another comes first
		if err := s.open(dir); err != nil {
			return nil, errors.Join(fmt.Errorf("making an empty %s: %w", dir, err), s.close())
		}
	}
	return s, nil
}

// toCover are the folders that get an overlay, what is in another before that: an
// overlay on an overlay would be one too deep where the machine's root is one, as
// that of a container is.
func toCover(dirs []string) []string {
	var all []string
	add := func(dir string) {
		if dir != "/" && !within(dir, volatile) && !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	for _, dir := range kept {
		if real, err := filepath.EvalSymlinks(dir); err == nil { // else it is missing
			add(real)
		}
	}
	for _, dir := range dirs {
		add(base(dir))
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	return all
}

// base is the nearest folder above one that the machine has, without links.
func base(dir string) string {
	for dir != "/" {
		dir = filepath.Dir(dir)
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue
		}
		if info, err := os.Stat(real); err == nil && info.IsDir() {
			return real
		}
	}
	return dir
}

func (s *store) open(dir string) error {
	if _, err := os.Stat(dir); err != nil && base(dir) == "/" {
		return errors.New("it would be in the root folder; make it first")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errors.Join(err, s.denied[base(dir)])
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || within(real, volatile) { // which is our own
		return err
	}
	// mount -t tmpfs tmpfs DIR
	if err := unix.Mount("tmpfs", real, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	s.mounted = append(s.mounted, real)
	return nil
}

// boot gives the node a file system for pins, which a reboot empties. In a user
// namespace there is none.
func (s *store) boot() error {
	err := s.unpin()
	// mount -t bpf bpf /sys/fs/bpf
	s.pinned = unix.Mount("bpf", pins, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") == nil
	return err
}

func (s *store) unpin() error {
	if !s.pinned {
		return nil
	}
	s.pinned = false
	return unix.Unmount(pins, unix.MNT_DETACH)
}

// writable are the folders that can be written.
func (s *store) writable() []string {
	return slices.Sorted(slices.Values(append([]string{volatile}, s.mounted...)))
}

// close gives the machine's own folders back.
func (s *store) close() error {
	errs := []error{s.unpin()}
	for _, dir := range slices.Backward(s.mounted) {
		// umount --lazy DIR; a daemon that was killed may still be going.
		errs = append(errs, unix.Unmount(dir, unix.MNT_DETACH))
	}
	s.mounted = nil
	return errors.Join(errs...)
}

// rebootRun empties what a reboot empties: all below /run but the folders of mounts
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
