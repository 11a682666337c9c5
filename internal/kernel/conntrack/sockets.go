package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel"
)

// The node's own TCP connections (include/uapi/linux/sock_diag.h and inet_diag.h). What a
// program of the node has said to a pod that did not hear it, the kernel says again for a
// quarter of an hour: to whoever has the address by then.
const (
	listSockets   = 20 // SOCK_DIAG_BY_FAMILY
	destroySocket = 21 // SOCK_DESTROY

	// A request (struct inet_diag_req_v2) begins with family, protocol and two bytes more,
	// the states that it asks for, and an id; an answer (struct inet_diag_msg) with family,
	// state and two bytes more, and an id. An id (struct inet_diag_sockid) has two ports,
	// two addresses, a link and a cookie, by which no other socket has it, ever.
	requestProto = 1
	requestSize  = 8 + idSize
	answerState  = 1
	answerID     = 4
	answerInode  = 68
	answerSize   = 72
	idPeer       = 20
	idSize       = 48

	// A filter (INET_DIAG_REQ_BYTECODE) is operations, each of which says how many bytes to
	// go on if it is true, and if it is not (struct inet_diag_bc_op): to the filter's end
	// if the socket is wanted, and 4 bytes beyond it if it is not.
	attrFilter = 1
	opJump     = 1 // INET_DIAG_BC_JMP: is never true
	opPeer     = 8 // INET_DIAG_BC_D_COND, with a struct inet_diag_hostcond
	opSize     = 4

	tcpStates = 12 // net/tcp_states.h

	// silent are the states in which the kernel says nothing by itself.
	silent = 1<<unix.BPF_TCP_TIME_WAIT | 1<<unix.BPF_TCP_CLOSE | 1<<unix.BPF_TCP_LISTEN
	// left are those of sockets that have no program any more, if they have no inode.
	left = 1<<unix.BPF_TCP_FIN_WAIT1 | 1<<unix.BPF_TCP_FIN_WAIT2 | 1<<unix.BPF_TCP_LAST_ACK | 1<<unix.BPF_TCP_CLOSING
)

// endSockets ends the node's TCP connections to some addresses; their programs hear
// ECONNABORTED. The kernel goes over its TCP sockets once a family, and tells of those
// whose other end is near the addresses.
//
//	ss -K dst ADDR
func (t *Table) endSockets(among map[netip.Addr]bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.ready()
	if err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return err
	}
	if t.sockets == nil {
		return nil
	}
	err = t.sockets.endSockets(among)
	if err == nil {
		return nil
	}
	t.sockets.Close()
	t.sockets = nil
	err = kernel.Classify(fmt.Errorf("ending TCP connections: %w", err))
	if errors.Is(err, kernel.ErrUnsupported) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
		// No INET_DIAG_DESTROY, no module tcp_diag (ENOENT), or root in a user namespace
		// alone; and will not be asked again.
		return nil
	}
	t.broken() // the next call opens all of it anew
	return err
}

func (s *socket) endSockets(among map[netip.Addr]bool) error {
	var found [][]byte // their families and ids
	note := func(answer []byte) error {
		if len(answer) >= answerSize && endable(answer) && among[peer(answer)] {
			found = append(found, slices.Concat(answer[:1], answer[answerID:answerID+idSize]))
		}
		return nil
	}
	b := s.batch()
	near4, near6 := near(among, netip.Addr.Is4), near(among, netip.Addr.Is6)
	for _, look := range []struct {
		family byte
		filter []byte
	}{
		{unix.AF_INET, near4},
		{unix.AF_INET6, either(near4, near6)}, // such a socket may speak IPv4, too
	} {
		if look.filter == nil {
			continue
		}
		b.begin(listSockets, look.family, requestSize+unix.SizeofNlAttr+len(look.filter))
		b.request(1<<(tcpStates+1)-2&^silent, make([]byte, idSize))
		b.out = binary.NativeEndian.AppendUint16(b.out, uint16(unix.SizeofNlAttr+len(look.filter)))
		b.out = append(binary.NativeEndian.AppendUint16(b.out, attrFilter), look.filter...)
		b.end()
		if _, err := s.dump(b.out, note); err != nil {
			return err
		}
		b.out = b.out[:0]
	}
	for _, f := range found {
		if !b.begin(destroySocket, f[0], requestSize) {
			if err := b.flush(); err != nil {
				return err
			}
			b.begin(destroySocket, f[0], requestSize)
		}
		b.request(0, f[1:])
		b.end()
	}
	return b.flush()
}

// request appends what is behind a request's first four bytes.
func (d *batch) request(states uint32, id []byte) {
	d.out[len(d.out)-4+requestProto] = unix.IPPROTO_TCP
	d.out = append(binary.NativeEndian.AppendUint32(d.out, states), id...)
}

// endable reports whether the kernel may be told to end a socket. One that its program
// has closed is given up within two minutes, and without a route has made its last try
// after one. To end it leaves it behind for ever in kernels without "tcp: fix forever
// orphan socket caused by tcp_abort" (Linux 6.11, and later ones of older series).
func endable(answer []byte) bool {
	hasProgram := binary.NativeEndian.Uint32(answer[answerInode:]) != 0
	return hasProgram || left>>answer[answerState]&1 == 0
}

// peer is the other end's address of a socket.
func peer(answer []byte) netip.Addr {
	raw := answer[answerID+idPeer:]
	if answer[0] == unix.AF_INET {
		return netip.AddrFrom4([4]byte(raw))
	}
	return netip.AddrFrom16([16]byte(raw)).Unmap()
}

// near filters sockets by the least prefix of their other ends that has all addresses of a
// family; nil without any. The kernel tries a filter on each socket: it has to be short,
// however many the addresses are.
func near(among map[netip.Addr]bool, family func(netip.Addr) bool) []byte {
	var low, high netip.Addr
	for a := range among {
		if !family(a) {
			continue
		}
		if !low.IsValid() || a.Less(low) {
			low = a
		}
		if high.Less(a) {
			high = a
		}
	}
	if !low.IsValid() {
		return nil
	}
	first, last, same := low.AsSlice(), high.AsSlice(), 0
	for i := range first {
		if alike := bits.LeadingZeros8(first[i] ^ last[i]); alike < 8 {
			same += alike
			break
		}
		same += 8
	}
	word := byte(unix.AF_INET6)
	if low.Is4() {
		word = unix.AF_INET
	}
	size := opSize + 8 + len(first)
	filter := op(opPeer, size, size+4)
	filter = append(filter, word, byte(same), 0, 0)
	filter = binary.NativeEndian.AppendUint32(filter, 1<<32-1) // any port
	return append(filter, first...)
}

// either is a filter of one peer, or of two.
func either(a, b []byte) []byte {
	if a == nil || b == nil {
		return append(a, b...)
	}
	a = slices.Clone(a)
	binary.NativeEndian.PutUint16(a[2:], uint16(len(a)+opSize)) // if not: behind the jump
	return slices.Concat(a, op(opJump, opSize, opSize+len(b)), b)
}

// op begins an operation.
func op(code byte, yes, no int) []byte {
	return binary.NativeEndian.AppendUint16([]byte{code, byte(yes)}, uint16(no))
}
