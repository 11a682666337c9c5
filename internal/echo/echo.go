// Package echo sends ICMP echos: for `berth check --probe`, for the demo and for tests.
package echo

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ICMP types (RFC 792; RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// tokenAt is where a request has its token, in bytes from the beginning of the ICMP header, and
// tokenLen is the token's length in bytes.
const tokenAt, tokenLen = 8, 8

// Request is an ICMP echo request.
type Request struct {
	To      netip.Addr
	message []byte
	id      uint32
}

// New makes an echo request. Its data begin with a token, which tells the request from others wherever
// the request passes. Identifier, sequence number and the other data are random.
func New(to netip.Addr, token [tokenLen]byte) *Request {
	// Type, code and checksum come first. Identifier, sequence number and data follow, and the
	// reply repeats them.
	r := &Request{To: to, message: make([]byte, 24)}
	rand.Read(r.message[4:])
	copy(r.message[tokenAt:], token[:])
	r.id = binary.BigEndian.Uint32(r.message[4:])
	if r.message[0] = echoRequest6; to.Is4() { // for ICMPv6 the kernel sets the checksum
		r.message[0] = echoRequest4
		binary.BigEndian.PutUint16(r.message[2:], Checksum(r.message))
	}
	return r
}

// ID returns identifier and sequence number.
func (r *Request) ID() uint32 { return r.id }

// Refused is an ICMP error that came in place of a reply.
type Refused struct {
	By  netip.Addr // who sent it; zero: not known
	Err unix.Errno // what it says, such as EHOSTUNREACH
}

func (r *Refused) Error() string {
	if !r.By.IsValid() {
		return r.Err.Error()
	}
	return fmt.Sprintf("%s says: %s", r.By, r.Err)
}

func (r *Refused) Unwrap() error { return r.Err }

// ErrSilent says that nobody has answered in time.
var ErrSilent = errors.New("no reply")

// Socket sends echo requests from the network namespace in which it was opened.
type Socket struct{ fd int }

// Open opens a socket in the calling thread's network namespace, which sends to an address alone,
// from an address of the namespace or, if from is the zero Addr, from the one that the kernel
// chooses. It needs CAP_NET_RAW there, which the root of a user namespace has. Without a route
// the error is ENETUNREACH or EHOSTUNREACH.
func Open(from, to netip.Addr) (*Socket, error) {
	family, proto, level, recverr := unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	if to.Is4() {
		family, proto, level, recverr = unix.AF_INET, unix.IPPROTO_ICMP, unix.IPPROTO_IP, unix.IP_RECVERR
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Socket{fd}
	// The kernel tells the socket the errors that others send.
	if err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, recverr, 1)); err == nil && from.IsValid() {
		err = s.at(from, unix.Bind, "bind")
	}
	if err == nil { // the kernel then takes in nothing from anybody else
		err = s.at(to, unix.Connect, "connect")
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Socket) at(a netip.Addr, call func(int, unix.Sockaddr) error, name string) error {
	sa, err := sockaddr(a)
	if err != nil {
		return err
	}
	return os.NewSyscallError(name, call(s.fd, sa))
}

// Close closes the socket.
func (s *Socket) Close() { _ = unix.Close(s.fd) }

// Ping sends a request, and waits for its reply until wait is over, however much else comes in. No
// reply is ErrSilent, and an ICMP error a *Refused. The calling thread may be in any namespace.
func (s *Socket) Ping(r *Request, wait time.Duration) error {
	end := time.Now().Add(wait)
	if _, err := unix.Write(s.fd, r.message); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 1500)
	for {
		left := time.Until(end)
		if left <= 0 {
			return fmt.Errorf("%w within %s", ErrSilent, wait)
		}
		tv := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		n, _, err := unix.Recvfrom(s.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			if refused := s.refused(r); refused != nil {
				return refused
			}
			continue // the error is about another message
		}
		got := buf[:n]
		if r.To.Is4() && n > 0 { // raw IPv4 sockets show the IP header
			got = got[min(n, int(got[0]&0xf)*4):]
		}
		if r.isReply(got) {
			return nil
		}
	}
}

// isReply reports whether a message is the request's reply.
func (r *Request) isReply(got []byte) bool {
	reply := byte(echoReply6)
	if r.To.Is4() {
		reply = echoReply4
	}
	return len(got) == len(r.message) && got[0] == reply && bytes.Equal(got[4:], r.message[4:])
}

// refused reads one ICMP error of those that came to the socket, and returns it if it is about
// the request. A router may have quoted no more than the first 8 bytes.
func (s *Socket) refused(r *Request) error {
	quoted, control := make([]byte, 128), make([]byte, 256)
	n, oobn, _, _, err := unix.Recvmsg(s.fd, quoted, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil || n < tokenAt || !bytes.HasPrefix(r.message[4:], quoted[4:min(n, len(r.message))]) {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:oobn])
	if err != nil {
		return nil
	}
	for _, m := range messages {
		// struct sock_extended_err: errno, origin, type, code, pad, info, data; then the sender's address
		const size = 16
		if len(m.Data) < size || m.Header.Type != unix.IP_RECVERR && m.Header.Type != unix.IPV6_RECVERR {
			continue
		}
		return &Refused{By: sender(m.Data[size:]), Err: unix.Errno(binary.NativeEndian.Uint32(m.Data))}
	}
	return nil
}

// sender reads a struct sockaddr.
func sender(raw []byte) netip.Addr {
	if len(raw) < 2 {
		return netip.Addr{}
	}
	switch family := binary.NativeEndian.Uint16(raw); {
	case family == unix.AF_INET && len(raw) >= 8:
		return netip.AddrFrom4([4]byte(raw[4:8]))
	case family == unix.AF_INET6 && len(raw) >= 24:
		return netip.AddrFrom16([16]byte(raw[8:24])).Unmap()
	}
	return netip.Addr{}
}

// Send sends one ICMP echo request from the calling thread's network namespace and
// waits for its reply, as `ping -c 1` does. No reply is an error. It needs CAP_NET_RAW
// there, which the root of a user namespace has.
func Send(to netip.Addr, wait time.Duration) error {
	s, err := Open(netip.Addr{}, to)
	if err != nil {
		return err
	}
	defer s.Close()
	var token [tokenLen]byte
	rand.Read(token[:])
	return s.Ping(New(to, token), wait)
}

// sockaddr returns an address in the form that the kernel wants. A zone names an interface of
// the calling thread's namespace, by its name or by its index.
func sockaddr(to netip.Addr) (unix.Sockaddr, error) {
	if to.Is4() {
		return &unix.SockaddrInet4{Addr: to.As4()}, nil
	}
	sa := &unix.SockaddrInet6{Addr: to.As16()}
	if zone := to.Zone(); zone != "" {
		if index, err := strconv.ParseUint(zone, 10, 32); err == nil {
			sa.ZoneId = uint32(index)
			return sa, nil
		}
		link, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, err
		}
		sa.ZoneId = uint32(link.Index)
	}
	return sa, nil
}

// Checksum returns the Internet checksum (RFC 1071).
func Checksum(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
