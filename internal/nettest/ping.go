package nettest

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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// quiet is how long a reply that must not come is waited for. On one machine
// an echo takes well under a millisecond.
const quiet = 50 * time.Millisecond

// Ping waits until to answers an ICMP echo from a namespace (nil: the
// process's own), as `ip netns exec NS ping` does, and ends the test if it
// does not.
func Ping(t testing.TB, from *ns.Netns, to netip.Addr) {
	t.Helper()
	Need(t)
	var err error
	end := time.Now().Add(Deadline)
	for time.Now().Before(end) {
		if err = Echo(from, to, 200*time.Millisecond); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited %s in vain for an echo: %v", Deadline, err)
}

// NoPing fails the test if to answers one of three ICMP echos from a
// namespace (nil: the process's own).
func NoPing(t testing.TB, from *ns.Netns, to netip.Addr) {
	t.Helper()
	Need(t)
	for range 3 {
		if Echo(from, to, quiet) == nil {
			t.Errorf("%s answers an echo from %s", to, where(from))
			return
		}
	}
}

// Echo sends one ICMP echo request from a namespace (nil: the process's own)
// and waits for its reply. No reply is an error.
func Echo(from *ns.Netns, to netip.Addr, wait time.Duration) error {
	err := inside(from, func() error { return echo(to, wait) })
	if err != nil {
		return fmt.Errorf("pinging %s from %s: %w", to, where(from), err)
	}
	return nil
}

// inside runs f in a namespace, nil being the process's own.
func inside(at *ns.Netns, f func() error) error {
	if at == nil {
		return f()
	}
	return at.Do(f)
}

func where(at *ns.Netns) string {
	if at == nil {
		return "the node"
	}
	return at.Ref().Path
}

// ICMP types (RFC 792; RFC 4443).
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// echo is Echo in the calling thread's namespace. It needs CAP_NET_RAW there,
// which the root of a user namespace has.
func echo(to netip.Addr, wait time.Duration) error {
	family, proto, request, reply := unix.AF_INET6, unix.IPPROTO_ICMPV6, byte(echoRequest6), byte(echoReply6)
	if to.Is4() {
		family, proto, request, reply = unix.AF_INET, unix.IPPROTO_ICMP, echoRequest4, echoReply4
	}
	s, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)

	// Type, code, checksum, then what comes back as it is: identifier,
	// sequence number and data, all of them random.
	message := make([]byte, 24)
	message[0] = request
	rand.Read(message[4:])
	if to.Is4() { // the kernel does it for ICMPv6
		binary.BigEndian.PutUint16(message[2:], checksum(message))
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

// sockaddr writes an address as the kernel wants it. A zone is an interface of
// the calling thread's namespace, by name or by index.
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

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
