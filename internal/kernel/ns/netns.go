// Package ns opens network namespaces, tells them apart and runs functions
// inside them. The plugin links it, so that it has nothing but the standard
// library and x/sys/unix.
package ns

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// What Open says of a path. Both are wrapped with the path and what is there.
var (
	ErrGone     = errors.New("network namespace is gone") // nothing there, or another one
	ErrNotNetns = errors.New("not a network namespace")   // something else is there
)

// Ref is the identity of a network namespace, with the path that led to it. A
// path is re-bound and an inode number reused at once, so neither alone does.
type Ref struct {
	Path string `json:"path"`         // as the caller gave it
	Dev  uint64 `json:"dev"`          // st_dev of the open file
	Ino  uint64 `json:"ino"`          // st_ino of the open file
	ID   uint64 `json:"id,omitempty"` // never reused while the machine runs; 0: not known
}

// Same reports whether r and o are one namespace, whatever their paths. Where
// one of them does not know the ID, device and inode decide.
func (r Ref) Same(o Ref) bool {
	return r.Dev == o.Dev && r.Ino == o.Ino && (r.ID == o.ID || r.ID == 0 || o.ID == 0)
}

// String shows the namespace as readlink(1) of its file does, with its path.
func (r Ref) String() string { return fmt.Sprintf("%s (net:[%d])", r.Path, r.Ino) }

// Open opens the namespace that was at r.Path. Nothing there, or another
// namespace or file by now, is ErrGone. A path that nobody answers for, on a file
// system that hangs, is ErrHangs: whoever has many pods must not wait for one's.
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
		return nil, fmt.Errorf("opening %s: %w: net:[%d] with id %d stands there, not net:[%d] with id %d",
			r.Path, ErrGone, n.ref.Ino, n.ref.ID, r.Ino, r.ID)
	}
	return n, nil
}

// Netns is an open network namespace: it exists for as long as this is open.
type Netns struct {
	fd  int
	ref Ref
}

// Open opens the network namespace at path: a bind mount such as those of `ip
// netns add`, or /proc/PID/ns/net. Nothing there is ErrGone, something else
// ErrNotNetns. It neither waits nor has side effects, whatever path is (a FIFO,
// a device): only a file of the namespace file system is really opened.
func Open(path string) (*Netns, error) {
	n, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("opening network namespace %q: %w", path, err)
	}
	return n, nil
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
	// What was looked at is what is opened, even if the path is re-bound now.
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

// Fd returns the file descriptor, which n keeps.
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
