package ns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// New makes a network namespace and binds it to the file at path; it creates the file
// if there is none. The namespace lasts as long as it is bound, open, or a process is
// in it. A New that fails leaves nothing behind. The caller needs CAP_SYS_ADMIN.
//
//	ip netns add NAME
func New(path string) (*Netns, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o400)
	if err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	_ = f.Close() // nothing was written
	if err := bind(path); err != nil {
		return nil, errors.Join(fmt.Errorf("making network namespace %s: %w", path, err), os.Remove(path))
	}
	n, err := Open(path)
	if err != nil {
		return nil, errors.Join(err, os.NewSyscallError("umount", unix.Unmount(path, unix.MNT_DETACH)), os.Remove(path))
	}
	return n, nil
}

// bind binds a new network namespace to the file at path.
func bind(path string) error {
	home, err := Self()
	if err != nil {
		return err
	}
	defer home.Close()
	return home.Do(func() error { // Do brings the thread back into home, or ends it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		return os.NewSyscallError("mount", unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""))
	})
}
