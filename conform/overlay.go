package conform

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// overlayAt returns the folder, in the suite's own /run, of the overlay with a number.
func overlayAt(number int) string { return filepath.Join(suiteDir, strconv.Itoa(number)) }

// upper returns where an overlay keeps what was changed. overlay is the folder of overlayAt.
func upper(overlay string) string { return filepath.Join(overlay, "upper") }

// cover mounts an overlay over the folder dir. Changes in dir go to the folder `at`. File systems that are mounted below dir stay
// mounted.
func cover(dir, at string) error {
	below, err := cloneMounts(dir)
	defer func() {
		for _, m := range below {
			_ = unix.Close(m.fd) // no error matters: nothing was written
		}
	}()
	if err != nil {
		return err
	}
	if err := mountOverlay(dir, at); err != nil {
		return fmt.Errorf("mounting an overlay over %s: %w", dir, err)
	}
	for _, m := range below {
		if err := unix.MoveMount(m.fd, "", unix.AT_FDCWD, m.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return errors.Join(fmt.Errorf("mounting %s again: %w", m.path, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	return nil
}

// mountOverlay mounts an overlay over the folder dir. The overlay keeps changes below the folder `at`,
// which mountOverlay empties first.
func mountOverlay(dir, at string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	work, upper := filepath.Join(at, "work"), upper(at)
	for _, d := range []string{work, upper} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(upper, info.Mode()); err != nil { // /tmp, for example, is for everybody to write to
		return err
	}
	// mount -t overlay overlay -o lowerdir=DIR,upperdir=...,workdir=... DIR
	escaped := strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(dir)
	return unix.Mount("overlay", dir, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escaped, upper, work))
}

// mountedBelow is a mount below a folder, together with the mounts below it.
type mountedBelow struct {
	path string
	fd   int // of open_tree(2)
}

// cloneMounts clones the mounts below a folder, since an overlay over the folder does not show
// these mounts.
func cloneMounts(dir string) ([]mountedBelow, error) {
	paths, err := mountPoints()
	if err != nil {
		return nil, err
	}
	slices.Sort(paths) // a mount comes after the mount that contains it
	var below []mountedBelow
	for _, path := range paths {
		taken := func(m mountedBelow) bool { return within(path, m.path) }
		if path == dir || !within(path, dir) || slices.ContainsFunc(below, taken) {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, unix.ENOENT) {
			continue // another mount hides this mount
		}
		if err != nil {
			return below, fmt.Errorf("cloning the mount %s: %w", path, err)
		}
		below = append(below, mountedBelow{path, fd})
	}
	return below, nil
}

// octal replaces the characters that mountinfo writes as numbers (proc(5)).
var octal = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountPoints is `findmnt -o TARGET`.
func mountPoints() ([]string, error) {
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(info)) {
		// ID parent major:minor root point ...
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, octal.Replace(fields[4]))
		}
	}
	return points, nil
}
