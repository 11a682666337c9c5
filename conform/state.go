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

// volatile is the folder that a reboot empties.
const volatile = "/run"

// kept are folders to which plugins write beside their state folders. A node gets overlays over
// these folders, so that the machine's own folders stay as they are.
var kept = []string{"/dev/shm", "/etc", "/tmp", "/var/lib", "/var/log", "/var/tmp"}

// pins is the folder in which programs pin eBPF programs and maps, that is, give them paths.
const pins = "/sys/fs/bpf"

// store makes folders that plugins can write on a node, although all of the machine's own
// folders are read-only.
type store struct {
	mounted  []string         // in the order of mounting
	overlays []string         // the first of mounted; what is written to the one with index N is in upper(N)
	pinned   bool             // an empty file system for pins is mounted as well
	denied   map[string]error // by folder, why the folder cannot have an overlay
}

// openStore gives a node empty state folders. Each is a tmpfs, mounted in an overlay over
// the nearest folder that the machine has: if the tmpfs were mounted in the machine's own folder,
// somebody outside who removes the state folder would remove the mount, too. The kept
// folders have overlays as well. A folder that cannot have an overlay (the kernel lacks overlays,
// or the folder is on two overlays already) stays read-only.
func openStore(dirs []string) (*store, error) {
	s := &store{denied: map[string]error{}}
	for _, dir := range toCover(dirs) {
		if err := cover(dir, overlayAt(len(s.mounted))); err != nil {
			s.denied[dir] = err
		} else {
			s.mounted = append(s.mounted, dir)
		}
	}
	s.overlays = slices.Clone(s.mounted)
	for _, dir := range slices.Sorted(slices.Values(dirs)) { // a folder comes before those within it
		if err := s.open(dir); err != nil {
			return nil, errors.Join(fmt.Errorf("making an empty %s: %w", dir, err), s.close())
		}
	}
	return s, nil
}

// toCover returns the folders that get an overlay. A folder comes before the folder that contains
// it. Otherwise one overlay would lie on another, and the kernel refuses a third layer: the
// machine's root may be an overlay itself, such as a container's.
func toCover(dirs []string) []string {
	var all []string
	add := func(dir string) {
		if dir != "/" && !within(dir, volatile) && !slices.Contains(all, dir) {
			all = append(all, dir)
		}
	}
	for _, dir := range kept {
		if real, err := filepath.EvalSymlinks(dir); err == nil { // else the machine lacks the folder
			add(real)
		}
	}
	for _, dir := range dirs {
		add(base(dir))
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	return all
}

// base returns the nearest folder above dir that the machine has, with symbolic links
// resolved.
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
		return errors.New("the suite makes no folder in the root folder; make it first")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errors.Join(err, s.denied[base(dir)])
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || within(real, volatile) { // the folder is in the suite's own /run
		return err
	}
	// mount -t tmpfs tmpfs DIR
	if err := unix.Mount("tmpfs", real, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	s.mounted = append(s.mounted, real)
	return nil
}

// boot gives the node an empty file system at pins, as every boot does. In a user
// namespace the kernel refuses to mount such a file system.
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

// writable returns the folders that can be written.
func (s *store) writable() []string {
	return slices.Sorted(slices.Values(append([]string{volatile}, s.mounted...)))
}

// close unmounts everything, so that the machine's own folders are visible again.
func (s *store) close() error {
	errs := []error{s.unpin()}
	for _, dir := range slices.Backward(s.mounted) {
		// umount --lazy DIR: a daemon that was killed may not have ended yet.
		errs = append(errs, unix.Unmount(dir, unix.MNT_DETACH))
	}
	s.mounted = nil
	return errors.Join(errs...)
}

// rebootRun empties /run as a reboot does, except for the suite's own folders of mounts and
// namespaces.
func rebootRun() error {
	entries, err := os.ReadDir(volatile)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if path := filepath.Join(volatile, e.Name()); path != netnsDir && path != suiteDir {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// within reports whether path is dir, or is below dir.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
