package nft

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/berth-net/berth/internal/echo"
	"golang.org/x/sys/unix"
)

// This file lets a pod send whole frames, which no ordinary socket would.

// packet returns an IP packet with a payload and with correct checksums.
func packet(from, to netip.Addr, proto byte, payload []byte) []byte {
	src, dst := from.AsSlice(), to.AsSlice()
	sum := map[byte]int{unix.IPPROTO_UDP: 6, unix.IPPROTO_TCP: 16, unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2}[proto]
	payload = slices.Clone(payload)
	pseudo := slices.Concat(src, dst, binary.BigEndian.AppendUint32(nil, uint32(len(payload))), []byte{0, 0, 0, proto})
	if proto == unix.IPPROTO_ICMP {
		pseudo = nil
	}
	binary.BigEndian.PutUint16(payload[sum:], echo.Checksum(slices.Concat(pseudo, payload)))
	if from.Is6() {
		head := []byte{0x60, 0, 0, 0, 0, 0, proto, 64}
		binary.BigEndian.PutUint16(head[4:], uint16(len(payload)))
		return slices.Concat(head, src, dst, payload)
	}
	head := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, proto, 0, 0}
	binary.BigEndian.PutUint16(head[2:], uint16(20+len(payload)))
	head = slices.Concat(head, src, dst)
	binary.BigEndian.PutUint16(head[10:], echo.Checksum(head))
	return append(head, payload...)
}

func udp(sport, dport uint16, text string) []byte {
	b := binary.BigEndian.AppendUint16(nil, sport)
	b = binary.BigEndian.AppendUint16(b, dport)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(text)))
	return append(append(b, 0, 0), text...)
}

// tcp returns a TCP segment with some flags and a text.
func tcp(flags byte, text string) []byte {
	b := []byte{4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 16, 0, 0, 0, 0, 0}
	return append(b, text...)
}

// frames sends frames from a pod's interface.
type frames struct {
	t      testing.TB
	fd     int
	header []byte // Ethernet's, without the type
}

// frames opens a packet socket on a place's interface. It sends to the node's MAC, or to
// the broadcast MAC.
func (w *world) frames(p *place) *frames {
	w.t.Helper()
	f := &frames{t: w.t, header: slices.Clone(p.link.Attrs().HardwareAddr)}
	w.inside(p.at, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		f.header = append(f.header, eth0.HardwareAddr...)
		if f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(f.fd, &unix.SockaddrLinklayer{Ifindex: eth0.Index})
	})
	w.t.Cleanup(func() { unix.Close(f.fd) })
	return f
}

// send sends an IP packet.
func (f *frames) send(p []byte) {
	f.t.Helper()
	typ, to := []byte{0x08, 0x00}, netip.AddrFrom4([4]byte(p[16:20]))
	if p[0]>>4 == 6 {
		typ, to = []byte{0x86, 0xdd}, netip.AddrFrom16([16]byte(p[24:40]))
	}
	header := slices.Clone(f.header)
	switch {
	case to.IsMulticast() && to.Is6():
		copy(header, []byte{0x33, 0x33, 0, 0, 0, 1})
	case to.IsMulticast():
		copy(header, []byte{0x01, 0x00, 0x5e, 0, 0, 1})
	case to == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		copy(header, []byte{255, 255, 255, 255, 255, 255})
	}
	if _, err := unix.Write(f.fd, slices.Concat(header, typ, p)); err != nil {
		f.t.Fatal(err)
	}
}
