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

// This file lists and ends the node's own TCP connections (include/uapi/linux/sock_diag.h and
// inet_diag.h). If a program of the node has sent something that a pod did not
// acknowledge, the kernel repeats the packet for a quarter of an hour, and another pod may have the
// address by then.
const (
	listSockets   = 20 // SOCK_DIAG_BY_FAMILY
	destroySocket = 21 // SOCK_DESTROY

	// A request (struct inet_diag_req_v2) is family, protocol, two more bytes, the states of the
	// sockets to list, and an id. An answer (struct inet_diag_msg) begins with family, state, two more
	// bytes, and an id. An id (struct inet_diag_sockid) is two ports, two addresses, a link, and a
	// cookie that no other socket ever has.
	requestProto = 1
	requestSize  = 8 + idSize
	answerState  = 1
	answerID     = 4
	answerInode  = 68
	answerSize   = 72
	idPeer       = 20
	idSize       = 48

	// A filter (INET_DIAG_REQ_BYTECODE) is a list of operations (struct inet_diag_bc_op).
	// Each operation says how many bytes to go forward if it is true and if it is false. Going to the
	// filter's end chooses the socket; going 4 bytes beyond the end does not.
	attrFilter = 1
	opAny      = 0 // INET_DIAG_BC_NOP: always true
	opJump     = 1 // INET_DIAG_BC_JMP: always false
	opPeer     = 8 // INET_DIAG_BC_D_COND, with a struct inet_diag_hostcond
	opSize     = 4

	tcpStates = 12 // net/tcp_states.h

	// silent are the states in which the kernel sends nothing by itself.
	silent = 1<<unix.BPF_TCP_TIME_WAIT | 1<<unix.BPF_TCP_CLOSE | 1<<unix.BPF_TCP_LISTEN
	// left are the states in which a socket has no inode only if its program has closed it.
	left = 1<<unix.BPF_TCP_FIN_WAIT1 | 1<<unix.BPF_TCP_FIN_WAIT2 | 1<<unix.BPF_TCP_LAST_ACK | 1<<unix.BPF_TCP_CLOSING
)

// endSockets ends the node's TCP connections to those of all addresses that are still among them; their
// programs get ECONNABORTED. The kernel goes over its TCP sockets once for each family, and lists those
// that the filter of near chooses.
//
//	ss -K dst ADDR
func (t *Table) endSockets(all map[netip.Addr]bool, among func(netip.Addr) bool) error {
	return t.withSockets("ending TCP connections", func(s *socket) error { return s.endSockets(all, among) })
}

// peers calls note with the peer of each TCP connection that endSockets would end.
//
//	ss -t
func (t *Table) peers(note func(netip.Addr)) error {
	return t.withSockets("listing TCP connections", func(s *socket) error {
		all := op(opAny, opSize, opSize+4)
		return s.connections(all, all, func(answer []byte) { note(peer(answer)) })
	})
}

// withSockets calls do with the socket that lists and ends TCP connections, unless the kernel can do neither.
func (t *Table) withSockets(doing string, do func(*socket) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.ready()
	if err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		return err
	}
	if t.sockets == nil {
		return nil
	}
	err = do(t.sockets)
	if err == nil {
		return nil
	}
	t.sockets.Close()
	t.sockets = nil
	err = kernel.Classify(fmt.Errorf("%s: %w", doing, err))
	if errors.Is(err, kernel.ErrUnsupported) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
		// The kernel has no INET_DIAG_DESTROY or no module tcp_diag (ENOENT), or we are root
		// in a user namespace only. t.sockets stays nil, so later calls do not ask again.
		return nil
	}
	t.broken() // the next call opens all sockets anew
	return err
}

func (s *socket) endSockets(all map[netip.Addr]bool, among func(netip.Addr) bool) error {
	var found [][]byte // family and id of each socket to end
	near4, near6 := near(all, netip.Addr.Is4), near(all, netip.Addr.Is6)
	filter6 := either(near4, near6) // an IPv6 socket may have an IPv4 peer
	err := s.connections(near4, filter6, func(answer []byte) {
		if among(peer(answer)) {
			found = append(found, slices.Concat(answer[:1], answer[answerID:answerID+idSize]))
		}
	})
	if err != nil {
		return err
	}
	b := s.batch()
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

// connections calls each with an answer of the kernel for each endable socket that a family's filter
// chooses. A nil filter chooses none.
func (s *socket) connections(filter4, filter6 []byte, each func(answer []byte)) error {
	note := func(answer []byte) error {
		if len(answer) >= answerSize && endable(answer) {
			each(answer)
		}
		return nil
	}
	b := s.batch()
	for _, look := range []struct {
		family byte
		filter []byte
	}{{unix.AF_INET, filter4}, {unix.AF_INET6, filter6}} {
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
	return nil
}

// request completes the message that begin has begun last: it sets the protocol in the first four
// bytes, and appends states and id.
func (d *batch) request(states uint32, id []byte) {
	d.out[len(d.out)-4+requestProto] = unix.IPPROTO_TCP
	d.out = append(binary.NativeEndian.AppendUint32(d.out, states), id...)
}

// endable reports whether Berth may have the kernel end a socket. A socket that its program has closed
// is not endable: kernels without the fix "tcp: fix forever orphan socket caused by tcp_abort" (Linux
// 6.11, and later releases of older series) would keep it for ever. Kernels give such a socket up by
// themselves within two minutes; without a route to the peer, the socket makes its last try after one
// minute.
func endable(answer []byte) bool {
	hasProgram := binary.NativeEndian.Uint32(answer[answerInode:]) != 0
	return hasProgram || left>>answer[answerState]&1 == 0
}

// peer returns the address of a socket's other end.
func peer(answer []byte) netip.Addr {
	raw := answer[answerID+idPeer:]
	if answer[0] == unix.AF_INET {
		return netip.AddrFrom4([4]byte(raw))
	}
	return netip.AddrFrom16([16]byte(raw)).Unmap()
}

// near returns a filter for sockets whose peer is in the smallest prefix that contains all addresses in
// among of a family; nil if among has none of the family. The filter is that coarse because it has to
// be short, however many addresses there are: the kernel runs it on each socket.
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

// either returns a filter for sockets that one of two filters of near chooses. a, b or both may be nil.
func either(a, b []byte) []byte {
	if a == nil || b == nil {
		return append(a, b...)
	}
	a = slices.Clone(a)
	binary.NativeEndian.PutUint16(a[2:], uint16(len(a)+opSize)) // if filter a is false: go on behind the jump, at filter b
	return slices.Concat(a, op(opJump, opSize, opSize+len(b)), b)
}

// op returns an operation's first 4 bytes. yes and no are how many bytes to go forward if the operation
// is true, and if it is false.
func op(code byte, yes, no int) []byte {
	return binary.NativeEndian.AppendUint16([]byte{code, byte(yes)}, uint16(no))
}
