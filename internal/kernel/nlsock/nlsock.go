// Package nlsock is a netlink socket that sends messages to the kernel and receives
// messages from the kernel alone. The packages that use it, rtnl and conntrack, make
// and read the messages.
package nlsock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// BufferSize, in bytes, holds the largest datagram of most dumps: the kernel puts at
	// most 32 KiB into one (netlink_dump in net/netlink/af_netlink.c), unless one message
	// alone is longer. Only messages about interfaces can be.
	BufferSize = 32 << 10

	// LongSize, in bytes, is what ReceiveLong takes. It holds an interface with all second
	// names that the kernel lets it have (64 KiB), in a dump as well.
	LongSize = 128 << 10

	// timeout is how long Receive waits for an answer. The kernel answers before sendto
	// returns, so a caller waits only if the kernel is broken, or if the socket had no room for the
	// answer.
	timeout = 30 * time.Second
)

// buffers are the buffers of closed sockets. An ADD opens a socket in the pod for a few
// messages: a buffer of its own would be a quarter of all memory that an ADD and a DEL allocate.
var buffers = sync.Pool{New: func() any { return new([BufferSize]byte) }}

// longBuffers are those of ReceiveLong for what is longer than BufferSize.
var longBuffers = sync.Pool{New: func() any { return new([LongSize]byte) }}

// ErrLong says that a message from the kernel is longer than BufferSize or, with ReceiveLong, LongSize. A pod
// can have an interface whose message is longer still: a macvlan tells all MACs that its mode source lets in.
var ErrLong = errors.New("the kernel's answer is too long")

var errSilent = errors.New("the kernel does not answer")

// One goroutine at a time may use a Socket. After any error its user has to close the Socket, because
// unread answers may be left in it.
type Socket struct {
	fd   int
	port uint32
	to   unix.SockaddrNetlink // the kernel's address; x/sys writes into it at each call
	buf  []byte
	long *[LongSize]byte // what ReceiveLong has returned last is in it; nil: it is in buf
	ctx  context.Context // the context that Until was given
}

// Open opens a socket in the calling thread's network namespace. bus is NETLINK_ROUTE,
// NETLINK_NETFILTER or the like; options are the socket options to turn on, such as
// NETLINK_EXT_ACK. The kernel's error messages do not repeat the request, because Open
// always turns on NETLINK_CAP_ACK.
func Open(bus int, options ...int) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, bus)
	if err != nil {
		return nil, fmt.Errorf("opening netlink socket: %w", os.NewSyscallError("socket", err))
	}
	s := &Socket{fd: fd, to: unix.SockaddrNetlink{Family: unix.AF_NETLINK}, buf: buffers.Get().(*[BufferSize]byte)[:], ctx: context.Background()}
	if err := s.prepare(append(options, unix.NETLINK_CAP_ACK)); err != nil {
		s.Close()
		return nil, fmt.Errorf("preparing netlink socket: %w", err)
	}
	return s, nil
}

func (s *Socket) prepare(options []int) error {
	// Connecting gives the socket its port, too. The kernel takes no messages of other programs for a
	// socket that is connected to the kernel (netlink_getsockbyportid): otherwise a pod could fill the
	// sockets that Berth has in the pod's namespace.
	if err := unix.Connect(s.fd, &s.to); err != nil {
		return os.NewSyscallError("connect", err)
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s.port = name.(*unix.SockaddrNetlink).Pid
	for _, option := range options {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return s.wait(timeout)
}

// wait sets how long a recvfrom waits. With 0 it would wait without end.
func (s *Socket) wait(d time.Duration) error {
	tv := unix.NsecToTimeval(int64(d))
	return os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
}

// Until has Receive fail once ctx has ended, even if the kernel has answered. If ctx ends before its
// deadline while Receive waits, Receive may still wait until the deadline.
func (s *Socket) Until(ctx context.Context) { s.ctx = ctx }

// Close closes the socket. From then on data that Receive has returned are not valid any more.
func (s *Socket) Close() {
	unix.Close(s.fd)
	buffers.Put((*[BufferSize]byte)(s.buf))
	s.buf = nil
	s.shorten()
}

// Fd returns the socket's file descriptor.
func (s *Socket) Fd() int { return s.fd }

// Port returns the socket's netlink address (nl_pid), to which the kernel answers.
func (s *Socket) Port() uint32 { return s.port }

// Send sends messages to the kernel in one datagram.
func (s *Socket) Send(out []byte) error {
	for {
		err := unix.Sendto(s.fd, out, 0, &s.to)
		if err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// Receive returns one datagram from the kernel, valid until the next call.
func (s *Socket) Receive() ([]byte, error) { return s.receive(false) }

// ReceiveLong is Receive for answers about interfaces, which can be longer than BufferSize. It looks first how
// long the datagram is, which costs a system call: of what does not fit the kernel would throw the rest away,
// and a dump cannot be asked again from there.
func (s *Socket) ReceiveLong() ([]byte, error) { return s.receive(true) }

// shorten gives the long buffer back.
func (s *Socket) shorten() {
	if s.long != nil {
		longBuffers.Put(s.long)
		s.long = nil
	}
}

func (s *Socket) receive(long bool) ([]byte, error) {
	s.shorten()
	for begun := time.Now(); ; {
		if err := context.Cause(s.ctx); err != nil {
			return nil, err
		}
		if end, ok := s.ctx.Deadline(); ok {
			if err := s.wait(min(timeout, max(time.Until(end), time.Millisecond))); err != nil {
				return nil, err
			}
		}
		buf, n, from, err := s.take(long)
		switch sender, ok := from.(*unix.SockaddrNetlink); {
		case err != nil && err != unix.EINTR && err != unix.EAGAIN:
			return nil, os.NewSyscallError("recvfrom", err)
		// Only port 0 is the kernel. Other programs may have written to the socket before it was
		// connected.
		case err != nil || !ok || sender.Pid != 0:
			if time.Since(begun) >= timeout {
				return nil, errSilent
			}
		case n > len(buf):
			return nil, fmt.Errorf("%w: %d bytes, more than %d", ErrLong, n, len(buf))
		default:
			return buf[:n], nil
		}
	}
}

// take takes one datagram from the socket, whoever has sent it, into buf. n is its length, whether or not buf
// had room for all of it.
func (s *Socket) take(long bool) (buf []byte, n int, from unix.Sockaddr, err error) {
	buf = s.buf
	if long {
		n, _, err := unix.Recvfrom(s.fd, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		if err != nil {
			return nil, 0, nil, err
		}
		if n > len(buf) {
			if s.long == nil {
				s.long = longBuffers.Get().(*[LongSize]byte)
			}
			buf = s.long[:]
		}
	}
	n, from, err = unix.Recvfrom(s.fd, buf, unix.MSG_TRUNC)
	return buf, n, from, err
}
