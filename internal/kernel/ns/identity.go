package ns

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From include/uapi/linux/nsfs.h and magic.h.
const (
	nsfsMagic   = 0x6e736673
	nsGetNSType = 0xb703     // _IO(0xb7, 0x3), Linux 4.11
	nsGetID     = 0x8008b70d // _IOR(0xb7, 13, __u64), Linux 6.18
)

// checkNamespaceFile returns nil if fd is a file of the namespace file system, else
// ErrNotNetns, or ErrFile, which says what the file is. fd may be open with O_PATH.
func checkNamespaceFile(fd int) error {
	var fs unix.Statfs_t
	if _, err := retry(func() (int, error) { return 0, unix.Fstatfs(fd, &fs) }); err != nil {
		return fmt.Errorf("fstatfs: %w", err)
	}
	if int64(fs.Type) == nsfsMagic {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	class := ErrNotNetns
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		class = ErrFile
	}
	return fmt.Errorf("%w: it is %s", class, fileType(st.Mode))
}

// fileType returns the type of a file with the given st_mode, in inode(7)'s words.
func fileType(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "a regular file"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR:
		return "a character device"
	case unix.S_IFBLK:
		return "a block device"
	}
	return fmt.Sprintf("a file of mode %#o", mode)
}

// namespaceType describes a type that the ioctl NS_GET_NSTYPE answers. (A map would be built at each
// start of the plugin.)
func namespaceType(kind int) string {
	switch kind {
	case unix.CLONE_NEWNS:
		return "a mount namespace"
	case unix.CLONE_NEWPID:
		return "a pid namespace"
	case unix.CLONE_NEWUSER:
		return "a user namespace"
	case unix.CLONE_NEWUTS:
		return "a uts namespace"
	case unix.CLONE_NEWIPC:
		return "an ipc namespace"
	case unix.CLONE_NEWCGROUP:
		return "a cgroup namespace"
	case unix.CLONE_NEWTIME:
		return "a time namespace"
	}
	return fmt.Sprintf("a namespace of type %#x", kind)
}

// identify reads the identity of the namespace that fd is open on. A namespace of
// another type is ErrNotNetns. On success the Netns owns fd.
func identify(fd int) (*Netns, error) {
	kind, err := unix.IoctlRetInt(fd, nsGetNSType)
	if err != nil {
		return nil, fmt.Errorf("asking for the namespace's type: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return nil, fmt.Errorf("%w: it is %s", ErrNotNetns, namespaceType(kind))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	n := &Netns{fd: fd, ref: Ref{Dev: uint64(st.Dev), Ino: st.Ino}}
	n.ref.ID = n.id()
	return n, nil
}

// id returns a number that no other network namespace of this boot has or will
// have; 0 if id cannot read it. There are two sources of such a number: the ioctl and the namespace's
// cookie. Which source id asks depends on the kernel alone, never on the caller's rights, so that the
// plugin and the agent compare numbers of the same source. (On Linux 6.18 both answer the same number.)
func (n *Netns) id() uint64 {
	var id uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(n.fd), nsGetID, uintptr(unsafe.Pointer(&id)))
	if errno == 0 {
		return id
	}
	if errno != unix.ENOTTY { // the kernel has this ioctl: do not ask the other source
		return 0
	}
	// id has to read SO_NETNS_COOKIE (Linux 5.14) from a socket inside the namespace; entering the
	// namespace by setns needs CAP_SYS_ADMIN.
	if err := n.Do(func() (err error) { id, err = cookie(); return err }); err != nil {
		return 0
	}
	return id
}

// cookie returns the cookie of the calling thread's network namespace.
func cookie() (uint64, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(s)
	return unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}
