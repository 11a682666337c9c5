package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/linklock"
	"github.com/berth-net/berth/internal/kernel/nlsock"
)

// socket is one NETLINK_ROUTE socket.
type socket struct {
	*nlsock.Socket
	seq    uint32 // the number of the last request sent
	sender Sender // of deletions; nil: the socket itself
}

// openSocket opens a socket in the calling thread's network namespace. The socket is of no use after
// ctx ends.
func openSocket(ctx context.Context) (*socket, error) {
	s, err := nlsock.Open(unix.NETLINK_ROUTE,
		unix.NETLINK_EXT_ACK,        // the kernel explains errors in words
		unix.NETLINK_GET_STRICT_CHK, // the kernel filters dumps
	)
	if err != nil {
		return nil, err
	}
	s.Until(ctx)
	return &socket{Socket: s}, nil
}

// errDesync says that an answer does not belong to what this socket asked.
var errDesync = errors.New("netlink answer out of order")

// exchange sends requests in one system call and returns an answer for each.
// If it returns the second error, the caller has to close the socket.
//
// The kernel goes on after a request that fails, and reports each failure. It reports success only for
// the last request (NLM_F_ACK), which saves a message for each of the other requests.
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
	if err := s.ask(rs, out); err != nil {
		return nil, err
	}
	errs, long := make([]error, len(rs)), slices.ContainsFunc(rs, Request.answersLong)
	for {
		msgs, err := s.receive(long)
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

// ask sends requests, which the kernel does before the system call returns. ask does not hold linklock
// until exchange has read the answers, because programs in the pod may write to this socket, too.
func (s *socket) ask(rs []Request, out []byte) error {
	if slices.ContainsFunc(rs, func(r Request) bool { return r.typ == unix.RTM_DELLINK }) {
		if s.sender != nil {
			return s.sender.Send(s.Fd(), out)
		}
		return s.Send(out)
	}
	return linklock.Do(func() error { return s.Send(out) })
}

// dump sends one request for a list and calls each for every item of it. It reports whether the list
// changed meanwhile, so that items may be missing or come twice. failed is the kernel's error. After
// broken the caller has to close the socket. dump returns an error of each as broken, too, because it
// does not read the rest of the list then.
func (s *socket) dump(r Request, each func(body []byte) error) (interrupted bool, failed, broken error) {
	if err := s.Send(s.append(nil, r, r.flags|unix.NLM_F_DUMP)); err != nil {
		return false, nil, err
	}
	for {
		msgs, err := s.receive(r.answersLong())
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

// append appends a request to out, under the next sequence number.
func (s *socket) append(out []byte, r Request, flags uint16) []byte {
	s.seq++
	out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+len(r.body)))
	out = binary.NativeEndian.AppendUint16(out, r.typ)
	out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|flags)
	out = binary.NativeEndian.AppendUint32(out, s.seq)
	out = binary.NativeEndian.AppendUint32(out, s.Port())
	return append(out, r.body...) // the body's length is a multiple of 4 bytes
}

// receive returns the messages of one datagram from the kernel. The messages are valid until the next
// call. long says that they may be those of interfaces.
func (s *socket) receive(long bool) ([]syscall.NetlinkMessage, error) {
	next := s.Receive
	if long {
		next = s.ReceiveLong
	}
	raw, err := next()
	if err != nil {
		return nil, err
	}
	msgs, err := syscall.ParseNetlinkMessage(raw)
	if err != nil {
		return nil, fmt.Errorf("parsing netlink answer: %w", err)
	}
	return msgs, nil
}
