// Package echo sends ICMP echos, for tests and for the demo.
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

// Send sends one ICMP echo request from the calling thread's network namespace and
// waits for its reply, as `ping -c 1` does. No reply is an error. It needs CAP_NET_RAW
// there, which the root of a user namespace has.
func Send(to netip.Addr, wait time.Duration) error {
	family, proto, request, reply := unix.AF_INET6, unix.IPPROTO_ICMPV6, byte(echoRequest6), byte(echoReply6)
	if to.Is4() {
		family, proto, request, reply = unix.AF_INET, unix.IPPROTO_ICMP, echoRequest4, echoReply4
	}
	s, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)

	// Type, code and checksum come first. Identifier, sequence number and data follow: they are
	// random, and the reply repeats them.
	message := make([]byte, 24)
	message[0] = request
	rand.Read(message[4:])
	if to.Is4() { // for ICMPv6 the kernel sets the checksum
		binary.BigEndian.PutUint16(message[2:], Checksum(message))
	}
	sa, err := sockaddr(to)
	if err != nil {
		return err
	}
	if err := unix.Sendto(s, message, 0, sa); err != nil {
		return os.NewSyscallError("sendto", err)
	}

	buf := make([]byte, 1500)
	for end := time.Now().Add(wait); ; {
		left := time.Until(end)
		if left <= 0 {
			return fmt.Errorf("no reply within %s", wait)
		}
		tv := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		n, _, err := unix.Recvfrom(s, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		got := buf[:n]
		if to.Is4() && n > 0 { // raw IPv4 sockets show the IP header
			got = got[min(n, int(got[0]&0xf)*4):]
		}
		if len(got) == len(message) && got[0] == reply && bytes.Equal(got[4:], message[4:]) {
			return nil
		}
	}
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
