// Package ns opens network namespaces, tells them apart and runs functions
// inside them. The plugin links this package, so it imports nothing but the standard library,
// x/sys/unix, internal/patience and internal/kernel/linklock.
package ns

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Errors of Open and Ref.Open. Open wraps them with the path and with what is there.
var (
	ErrGone     = errors.New("network namespace is gone") // nothing is at the path; for Ref.Open also: something else is there
	ErrNotNetns = errors.New("not a network namespace")   // the path leads to something else
	// ErrFile is the ErrNotNetns of a regular file. An unmount of a namespace leaves the file on
	// which it was mounted, and so may the end of a boot.
	ErrFile error = fileError{ErrNotNetns}
)

// fileError wraps an error. (fmt.Errorf would run, and allocate, at each start of the plugin.)
type fileError struct{ error }

func (e fileError) Unwrap() error { return e.error }

// Ref is the identity of a network namespace, with the path that led to it. Neither
// the path nor the inode number identifies a namespace alone: a path can be bound to
// another namespace, and the kernel reuses an inode number at once.
type Ref struct {
	Path string `json:"path"`         // as the caller gave it
	Dev  uint64 `json:"dev"`          // st_dev of the open file
	Ino  uint64 `json:"ino"`          // st_ino of the open file
	ID   uint64 `json:"id,omitempty"` // never reused while the machine runs; 0: not known
}

// Same reports whether r and o are one namespace, whatever their paths are. If the ID of r or o is not
// known, device and inode decide.
func (r Ref) Same(o Ref) bool {
	return r.Dev == o.Dev && r.Ino == o.Ino && (r.ID == o.ID || r.ID == 0 || o.ID == 0)
}

// String shows the namespace as readlink(1) of its file does, with its path.
func (r Ref) String() string { return fmt.Sprintf("%s (net:[%d])", r.Path, r.Ino) }

// Open opens the namespace that was at r.Path. If nothing is there now, or another
// namespace or file, the error is ErrGone. If the path is on a file system that hangs,
// the error is ErrHangs: an agent with many pods must not wait for one pod's path.
func (r Ref) Open() (*Netns, error) {
	n, err := OpenSoon(r.Path)
	if errors.Is(err, ErrNotNetns) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	if !r.Same(n.ref) {
		n.Close()
		return nil, fmt.Errorf("opening %s: %w: the path is now net:[%d] with id %d, not net:[%d] with id %d",
			r.Path, ErrGone, n.ref.Ino, n.ref.ID, r.Ino, r.ID)
	}
	return n, nil
}

// Handle is what callers need of an open namespace that they hand on. A Netns is a Handle, and so is an
// open namespace of a node in memory. The namespace lives at least until Close.
type Handle interface {
	Ref() Ref
	// HasLink reports whether the namespace has a link of that name, whoever made it.
	HasLink(name string) (bool, error)
	Close() error
}

// Netns is an open network namespace. The namespace exists at least until Close.
type Netns struct {
	fd  int
	ref Ref
}

// Open opens the network namespace at path: a bind mount such as those of `ip
// netns add`, or /proc/PID/ns/net. If nothing is there the error is ErrGone, if
// something else is there ErrNotNetns. A path that leads to a FIFO or a device makes
// Open neither wait nor cause a side effect: Open looks at the file by O_PATH, and
// really opens only a file of the namespace file system. A file system that hangs can
// keep Open for ever: see OpenSoon.
func Open(path string) (*Netns, error) {
	n, err := open(path)
	return n, about(path, err)
}

// Passing reports whether an error in looking for a namespace, or into a namespace, says nothing about
// the namespace: another try may succeed, because the machine or the process lacks something just now,
// or the path's file system does not answer.
func Passing(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, ErrHangs} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// about adds to an error which path it is about.
func about(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("opening network namespace %q: %w", path, err)
}

func open(path string) (*Netns, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: the path is empty", ErrNotNetns)
	}
	at, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	switch err {
	case nil:
	case unix.ENOENT:
		return nil, ErrGone
	case unix.ELOOP, unix.ENOTDIR, unix.ENAMETOOLONG, unix.EINVAL: // EINVAL: a NUL in the path
		return nil, fmt.Errorf("%w: %w", ErrNotNetns, err)
	default:
		return nil, err
	}
	defer unix.Close(at)
	if err := checkNamespaceFile(at); err != nil {
		return nil, err
	}
	return reopen(at, path)
}

// reopen opens the very file that at is open on by O_PATH, even if somebody has bound the path anew
// since. The file is of the namespace file system.
func reopen(at int, path string) (*Netns, error) {
	same := "/proc/self/fd/" + strconv.Itoa(at)
	fd, err := retry(func() (int, error) { return unix.Open(same, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	n, err := identify(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	n.ref.Path = path
	return n, nil
}

// Self opens the network namespace of the calling thread, which is the
// process's own unless the caller has locked its thread and changed it.
func Self() (*Netns, error) { return Open("/proc/thread-self/ns/net") }

// Fd returns the file descriptor. n still owns it.
func (n *Netns) Fd() int { return n.fd }

// Ref returns the namespace's identity.
func (n *Netns) Ref() Ref { return n.ref }

// Close closes the file descriptor. Closing twice is an error.
func (n *Netns) Close() error {
	fd := n.fd
	n.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("closing network namespace: %w", os.NewSyscallError("close", err))
	}
	return nil
}

// retry repeats a system call that a signal interrupts.
func retry(call func() (int, error)) (int, error) {
	for {
		v, err := call()
		if err != unix.EINTR {
			return v, err
		}
	}
}
