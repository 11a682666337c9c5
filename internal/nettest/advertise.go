package nettest

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Advertise sends a router advertisement (RFC 4861, 4.2) from a link-local address to all nodes
// on a link. A host that accepts it has a default route by that address for half an hour and, if
// prefix is valid, an address of the prefix for as long.
func Advertise(t testing.TB, at *ns.Netns, link string, router netip.Addr, prefix netip.Prefix) {
	t.Helper()
	const lifetime = 1800 // seconds
	message := make([]byte, 16)
	message[0] = 134 // router advertisement
	message[4] = 64  // hop limit
	binary.BigEndian.PutUint16(message[6:], lifetime)
	if prefix.IsValid() {
		info := make([]byte, 32)
		info[0], info[1] = 3, 4                         // prefix information, in units of 8 bytes
		info[2], info[3] = byte(prefix.Bits()), 0x80|64 // on this link; addresses may be made of it
		binary.BigEndian.PutUint32(info[4:], lifetime)
		binary.BigEndian.PutUint32(info[8:], lifetime)
		copy(info[16:], prefix.Addr().AsSlice())
		message = append(message, info...)
	}
	send := func() error {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		zone := uint32(l.Index)
		s, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		// Neighbours discover each other at this hop limit only.
		if err := unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		if err := unix.Bind(s, &unix.SockaddrInet6{Addr: router.As16(), ZoneId: zone}); err != nil {
			return fmt.Errorf("binding to %s: %w", router, err)
		}
		return unix.Sendto(s, message, 0, &unix.SockaddrInet6{Addr: [16]byte{0xff, 0x02, 15: 1}, ZoneId: zone})
	}
	if err := DoIn(at, send); err != nil {
		t.Fatalf("advertising a router: %v", err)
	}
}
