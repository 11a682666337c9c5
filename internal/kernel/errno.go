// Package kernel is the kernel's door: it classifies, once, the errors that system
// calls and netlink requests return. The packages below it (ns, rtnl, nft, conntrack, bpf)
// each speak to one part of the kernel.
package kernel

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Classes of errors. errors.Is finds both the class and the errno in what
// Classify returns.
var (
	ErrNotFound    = errors.New("not found")        // the thing, or something that it needs, does not exist
	ErrExists      = errors.New("already exists")   // something else has the thing's place
	ErrBusy        = errors.New("in use")           // somebody else uses the thing, so it cannot change
	ErrPermission  = errors.New("not permitted")    // asking again does not help
	ErrInvalid     = errors.New("invalid")          // the request makes no sense to the kernel
	ErrUnsupported = errors.New("not supported")    // this kernel, or this family, cannot do it
	ErrInterrupted = errors.New("interrupted")      // a signal came, or a list changed while the kernel read it: ask again at once
	ErrAgain       = errors.New("not now")          // ask again later
	ErrExhausted   = errors.New("out of resources") // memory, buffers, descriptors, space
	ErrUnreachable = errors.New("unreachable")      // no route, or the link is down
)

// classes says what each errno means at netlink, nftables, namespaces and
// /proc/sys; errno(3) has their general meaning.
var classes = map[unix.Errno]error{
	unix.ENOENT:        ErrNotFound, // nft object, rule, file
	unix.ENODEV:        ErrNotFound, // link
	unix.ESRCH:         ErrNotFound, // route, process
	unix.ENXIO:         ErrNotFound, // neighbour table, device
	unix.EADDRNOTAVAIL: ErrNotFound, // address on a link

	unix.EEXIST: ErrExists,

	unix.EBUSY:      ErrBusy,
	unix.EADDRINUSE: ErrBusy,
	unix.ETXTBSY:    ErrBusy,
	unix.ENOTEMPTY:  ErrBusy,

	unix.EPERM:  ErrPermission,
	unix.EACCES: ErrPermission,
	unix.EROFS:  ErrPermission,

	unix.EINVAL:       ErrInvalid,
	unix.ERANGE:       ErrInvalid,
	unix.EDOM:         ErrInvalid,
	unix.E2BIG:        ErrInvalid,
	unix.EMSGSIZE:     ErrInvalid,
	unix.ENAMETOOLONG: ErrInvalid,
	unix.ELOOP:        ErrInvalid,
	unix.ENOTDIR:      ErrInvalid,
	unix.EISDIR:       ErrInvalid,

	unix.EOPNOTSUPP:      ErrUnsupported,
	unix.EAFNOSUPPORT:    ErrUnsupported,
	unix.EPFNOSUPPORT:    ErrUnsupported,
	unix.EPROTONOSUPPORT: ErrUnsupported,
	unix.ENOPROTOOPT:     ErrUnsupported,
	unix.ENOSYS:          ErrUnsupported,
	unix.ENOTTY:          ErrUnsupported,

	unix.EINTR: ErrInterrupted,

	unix.EAGAIN:    ErrAgain,
	unix.ETIMEDOUT: ErrAgain,

	unix.ENOMEM:  ErrExhausted,
	unix.ENOBUFS: ErrExhausted,
	unix.ENOSPC:  ErrExhausted,
	unix.EDQUOT:  ErrExhausted,
	unix.EMFILE:  ErrExhausted,
	unix.ENFILE:  ErrExhausted,
	unix.EUSERS:  ErrExhausted,

	unix.ENETUNREACH:  ErrUnreachable,
	unix.EHOSTUNREACH: ErrUnreachable,
	unix.ENETDOWN:     ErrUnreachable,
}

// classified is an error whose class is known. Its text is the text of the error that it wraps.
type classified struct {
	class error
	err   error
}

func (c *classified) Error() string   { return c.err.Error() }
func (c *classified) Unwrap() []error { return []error{c.class, c.err} }

// Classify wraps err with the class of the errno in it; errors.As still finds the
// errno. It returns err unchanged if err is nil, contains no errno, contains an
// errno that has no class, or has a class already.
func Classify(err error) error {
	var (
		done  *classified
		errno unix.Errno
	)
	if errors.As(err, &done) || !errors.As(err, &errno) {
		return err
	}
	if class, ok := classes[errno]; ok {
		return &classified{class, err}
	}
	return err
}

// As gives err a class that no errno in it tells, such as for a library's own
// "link not found". nil stays nil.
func As(class, err error) error {
	if err == nil || errors.Is(err, class) {
		return err
	}
	return &classified{class, err}
}
