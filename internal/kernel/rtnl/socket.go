package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// bufferSize holds the largest message the kernel makes for a dump: it
	// fills at most 32 KiB (netlink_dump in net/netlink/af_netlink.c).
	bufferSize = 32 << 10

	// timeout in seconds for an answer. rtnetlink answers before sendto
	// returns, so that only a broken kernel makes anybody wait for it.
	timeout = 30
)

// socket is one NETLINK_ROUTE socket. It is used by one goroutine at a time,
// and thrown away once anything about it went wrong.
type socket struct {
	fd   int
	port uint32 // its address
	seq  uint32 // of the last request sent
	buf  []byte
}

// openSocket opens a socket in the calling thread's network namespace.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening netlink socket: %w", os.NewSyscallError("socket", err))
	}
	s := &socket{fd: fd, buf: make([]byte, bufferSize)}
	if err := s.prepare(); err != nil {
		s.close()
		return nil, fmt.Errorf("preparing netlink socket: %w", err)
	}
	return s, nil
}

func (s *socket) prepare() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s.port = name.(*unix.SockaddrNetlink).Pid
	for _, option := range []int{
		unix.NETLINK_EXT_ACK,        // errors say what is wrong in words
		unix.NETLINK_CAP_ACK,        // and do not repeat the request
		unix.NETLINK_GET_STRICT_CHK, // dumps are filtered by the kernel
	} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	tv := unix.Timeval{Sec: timeout}
	return os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
}

func (s *socket) close() { unix.Close(s.fd) }

// errDesync says that an answer was not to what this socket asked.
var errDesync = errors.New("netlink answer out of order")

// exchange sends requests in one system call and collects an answer a request.
// The second error says that the socket is of no more use.
//
// The kernel goes on after a request that fails, and reports each failure;
// success is reported only of the last request, which costs one message less
// for each of the others.
func (s *socket) exchange(rs []Request) ([]error, error) {
	first := s.seq + 1
	var out []byte
	for i, r := range rs {
		flags := r.flags
		if i == len(rs)-1 {
			flags |= unix.NLM_F_ACK
		}
		out = s.append(out, r, flags)
	}
	if err := s.send(out); err != nil {
		return nil, err
	}
	errs := make([]error, len(rs))
	for {
		msgs, err := s.receive()
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			i := m.Header.Seq - first
			if i >= uint32(len(rs)) {
				return nil, fmt.Errorf("%w: number %d for %d to %d", errDesync, m.Header.Seq, first, s.seq)
			}
			if m.Header.Type != unix.NLMSG_ERROR {
				if answer := rs[i].answer; answer != nil {
					errs[i] = answer(m.Data)
				}
				continue
			}
			if err := parseError(m); err != nil {
				errs[i] = err
			}
			if m.Header.Seq == s.seq {
				return errs, nil
			}
		}
	}
}

// dump sends one request for a list and calls each for every item of it. It
// reports whether the list changed under way, so that items may be missing or
// double. The second error says that the socket is of no more use, as after an
// error of each: the rest of the list is not waited for.
func (s *socket) dump(r Request, each func(body []byte) error) (interrupted bool, failed, broken error) {
	if err := s.send(s.append(nil, r, r.flags|unix.NLM_F_DUMP)); err != nil {
		return false, nil, err
	}
	for {
		msgs, err := s.receive()
		if err != nil {
			return false, nil, err
		}
		for _, m := range msgs {
			if m.Header.Seq != s.seq {
				return false, nil, fmt.Errorf("%w: number %d for %d", errDesync, m.Header.Seq, s.seq)
			}
			if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = true
			}
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR: // both begin with an errno
				return interrupted, parseError(m), nil
			default:
				if err := each(m.Data); err != nil {
					return false, nil, err
				}
			}
		}
	}
}

// append adds a request to what is to be sent, under the next number.
func (s *socket) append(out []byte, r Request, flags uint16) []byte {
	s.seq++
	out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+len(r.body)))
	out = binary.NativeEndian.AppendUint16(out, r.typ)
	out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|flags)
	out = binary.NativeEndian.AppendUint32(out, s.seq)
	out = binary.NativeEndian.AppendUint32(out, s.port)
	return append(out, r.body...) // of whole 4-byte words
}

func (s *socket) send(out []byte) error {
	for {
		err := unix.Sendto(s.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// receive returns the messages of one datagram from the kernel. They are valid
// until the next call.
func (s *socket) receive() ([]syscall.NetlinkMessage, error) {
	for {
		n, from, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // another process can write to our address; only port 0 is the kernel
		}
		if n > len(s.buf) {
			return nil, fmt.Errorf("netlink answer of %d bytes, more than %d", n, len(s.buf))
		}
		msgs, err := syscall.ParseNetlinkMessage(s.buf[:n])
		if err != nil {
			return nil, fmt.Errorf("parsing netlink answer: %w", err)
		}
		return msgs, nil
	}
}
