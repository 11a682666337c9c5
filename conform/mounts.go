package conform

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// furnish gives new namespaces mounts through which nothing on the machine can be changed.
// Each node adds the folders that plugins write to.
func furnish() error {
	if err := ownMounts(); err != nil {
		return err
	}
	return protect()
}

// ownMounts separates the mounts of the new namespace from the host's. Nobody outside sees new mounts,
// /proc shows the processes of the new PID namespace, and /run is empty (the host's /run has locks,
// daemons' sockets and namespaces).
func ownMounts() error {
	// mount --make-rprivate /
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	// mount -t proc proc /proc; in the old /proc plugins would not find their own process
	// IDs.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting a new /proc (in a container it has to be unmasked, as by docker run --security-opt systempaths=unconfined): %w", err)
	}
	// mount -t tmpfs tmpfs /run, as after a boot
	if err := unix.Mount("tmpfs", volatile, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mounting an empty %s: %w", volatile, err)
	}
	return os.MkdirAll(netnsDir, 0o755)
}

// fenced are the parts of /proc that steer the whole machine, and also netSysctls, which steers only
// the network namespace. Each gets a mount of its own, so that protect can treat it separately.
var fenced = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger", "/proc/sys", netSysctls}

const netSysctls = "/proc/sys/net"

// protect makes all mounts read-only, except the suite's own. Devices can still be written,
// since /dev/null has to be.
func protect() error {
	for _, path := range fenced {
		// mount --rbind PATH PATH
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("making a mount of %s: %w", path, err)
		}
	}
	// mount -o remount,bind,ro / and all mounts below it
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("making the machine's files read-only (mount_setattr, which Linux 5.12 brought): %w", err)
	}
	for _, path := range []string{"/proc", netSysctls, volatile} {
		// mount -o remount,bind,rw PATH
		if err := unix.MountSetattr(unix.AT_FDCWD, path, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("making %s writable: %w", path, err)
		}
	}
	return nil
}
