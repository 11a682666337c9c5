package conntrack

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/nlsock"
)

const (
	// batchSize is how many bytes of deletions go into one system call. The answers to failed
	// requests, 36 bytes each, fit into a socket's receive buffer.
	batchSize = 16 << 10

	headerSize = unix.SizeofNlMsghdr + nfgenmsgSize
	// nfgenmsgSize is the size of what each message begins with: family, version, id.
	nfgenmsgSize = 4

	listEntries  = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	deleteEntry  = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
	anyFamily    = unix.AF_UNSPEC
	noSuchEntry  = unix.ENOENT
	noSuchMetric = unix.ESRCH
	sizeofErrno  = 4
	offsetOfType = 4
)

// socket is one netlink socket.
type socket struct {
	*nlsock.Socket
	seq  uint32
	room []byte // the buffer of the last batch, for the next one
}

// openSocket opens a socket in the calling thread's network namespace. bus is
// NETLINK_NETFILTER; or NETLINK_GENERIC, whose messages have a header of the same size; or
// NETLINK_SOCK_DIAG, whose messages also begin with a family.
func openSocket(bus int) (*socket, error) {
	s, err := nlsock.Open(bus)
	if err != nil {
		return nil, err
	}
	return &socket{Socket: s}, nil
}

// entries lists all entries of both families. It calls each with an entry's attributes,
// which are valid until each returns. It returns what dump returns.
func (s *socket) entries(each func(family byte, entry []byte) error) (interrupted bool, err error) {
	s.seq++
	return s.dump(header(nil, listEntries, unix.NLM_F_REQUEST, s.seq, anyFamily), func(body []byte) error {
		if len(body) < nfgenmsgSize {
			return nil
		}
		return each(body[0], body[nfgenmsgSize:])
	})
}

// dump sends a request for a list. The request must have the socket's last sequence number. It calls
// each with the body of each answer, which is valid until each returns. It reports whether the list
// changed meanwhile, so that items may be missing. An error of each ends the list. After any error the
// socket is of no more use.
func (s *socket) dump(request []byte, each func(body []byte) error) (interrupted bool, err error) {
	flags := binary.NativeEndian.Uint16(request[offsetOfType+2:]) | unix.NLM_F_DUMP
	binary.NativeEndian.PutUint16(request[offsetOfType+2:], flags)
	if err := s.Send(request); err != nil {
		return false, err
	}
	for {
		b, err := s.Receive()
		if err != nil {
			return false, err
		}
		for len(b) > 0 {
			m, rest, err := cut(b)
			if err != nil {
				return false, err
			}
			b = rest
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = true
			}
			switch {
			case m.seq != s.seq:
				return false, fmt.Errorf("netlink answer out of order: number %d for %d", m.seq, s.seq)
			case m.typ == unix.NLMSG_DONE || m.typ == unix.NLMSG_ERROR:
				return interrupted, m.errno()
			}
			if err := each(m.body); err != nil {
				return false, err
			}
		}
	}
}

// batch collects deletions that go into one system call. A socket has one batch at a time.
type batch struct {
	s    *socket
	out  []byte
	last int // where the last message begins
}

func (s *socket) batch() *batch {
	if s.room == nil {
		s.room = make([]byte, 0, batchSize)
	}
	return &batch{s: s, out: s.room}
}

// add adds the deletion of an entry; false if the batch is full.
func (d *batch) add(family byte, entry []byte) bool {
	if !d.begin(deleteEntry, family, len(entry)) {
		return false
	}
	d.out = names(d.out, entry)
	d.end()
	return true
}

// begin begins a message with at most `most` bytes behind its header; false if the batch has no room
// for the message. The header's last four bytes are `first` and three zeros.
func (d *batch) begin(typ uint16, first byte, most int) bool {
	if len(d.out)+headerSize+most > batchSize && len(d.out) > 0 {
		return false
	}
	d.last = len(d.out)
	d.s.seq++
	d.out = header(d.out, typ, unix.NLM_F_REQUEST, d.s.seq, first)
	return true
}

// end ends the message that begin has begun last.
func (d *batch) end() { binary.NativeEndian.PutUint32(d.out[d.last:], uint32(len(d.out)-d.last)) }

// flush sends the deletions. It succeeds also if an entry is gone already.
func (d *batch) flush() error {
	if len(d.out) == 0 {
		return nil
	}
	// The kernel reports each failure, but success only of the last message (NLM_F_ACK).
	flags := binary.NativeEndian.Uint16(d.out[d.last+6:]) | unix.NLM_F_ACK
	binary.NativeEndian.PutUint16(d.out[d.last+6:], flags)
	err := d.s.Send(d.out)
	d.out = d.out[:0]
	for err == nil {
		var b []byte
		if b, err = d.s.Receive(); err != nil {
			return err
		}
		for len(b) > 0 {
			m, rest, err := cut(b)
			if err != nil {
				return err
			}
			b = rest
			if m.typ != unix.NLMSG_ERROR {
				continue
			}
			if err := m.errno(); err != nil && err != noSuchEntry && err != noSuchMetric {
				return fmt.Errorf("deleting an entry: %w", err)
			}
			if m.seq == d.s.seq {
				return nil
			}
		}
	}
	return err
}

// header appends a message's header and its nfgenmsg (version NFNETLINK_V0).
func header(out []byte, typ, flags uint16, seq uint32, family byte) []byte {
	out = binary.NativeEndian.AppendUint32(out, headerSize)
	out = binary.NativeEndian.AppendUint16(out, typ)
	out = binary.NativeEndian.AppendUint16(out, flags)
	out = binary.NativeEndian.AppendUint32(out, seq)
	out = binary.NativeEndian.AppendUint32(out, 0) // the sender's port: the kernel does not check it
	return append(out, family, 0, 0, 0)
}

// message is a message from the kernel.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

// cut takes the first message off a datagram.
func cut(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, fmt.Errorf("netlink message of %d bytes", len(b))
	}
	size := int(binary.NativeEndian.Uint32(b))
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return m, nil, fmt.Errorf("netlink message of %d bytes in %d", size, len(b))
	}
	m = message{
		typ:   binary.NativeEndian.Uint16(b[offsetOfType:]),
		flags: binary.NativeEndian.Uint16(b[offsetOfType+2:]),
		seq:   binary.NativeEndian.Uint32(b[offsetOfType+4:]),
		body:  b[unix.SizeofNlMsghdr:size],
	}
	return m, b[min((size+3)&^3, len(b)):], nil
}

// errno reads an NLMSG_ERROR or NLMSG_DONE: nil for success.
func (m message) errno() error {
	if len(m.body) < sizeofErrno {
		return nil
	}
	if code := -int32(binary.NativeEndian.Uint32(m.body)); code != 0 {
		return unix.Errno(code)
	}
	return nil
}
