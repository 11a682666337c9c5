package ns

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Apart has a program start in network and mount namespaces of its own, and, if user is set, in a
// user namespace, whose root is the user that starts the program. The program ends with the thread that
// started it.
func Apart(user bool) *syscall.SysProcAttr {
	if !user {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	}
	return &syscall.SysProcAttr{
		// The network namespace comes when the user namespace has its mappings: before,
		// the kernel gives files below /proc/net to the host's root (net/netfilter/x_tables.c).
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, Unshareflags: unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   unix.SIGKILL,
	}
}

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

// Delete takes away the path of a namespace that New made, and closes the namespace. A second Delete
// does nothing.
//
//	ip netns delete NAME
func (n *Netns) Delete() error {
	_ = n.Close() // fails if somebody has closed n already
	path := n.ref.Path
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmounting %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Unbound makes a network namespace that has no path. The namespace ends when somebody closes it,
// unless a process or a socket is in it. The caller needs CAP_SYS_ADMIN.
//
//	unshare --net
func Unbound() (n *Netns, err error) {
	err = fresh(func() (err error) { n, err = Self(); return err })
	if err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	return n, nil
}

// bind binds a new network namespace to the file at path.
func bind(path string) error {
	return fresh(func() error {
		return os.NewSyscallError("mount", unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""))
	})
}

// fresh runs f with its thread in a new network namespace.
func fresh(f func() error) error {
	home, err := Self()
	if err != nil {
		return err
	}
	defer home.Close()
	return home.Do(func() error { // Do brings the thread back into home, or ends it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		return f()
	})
}
