package hostile

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/internal/echo"
	"golang.org/x/sys/unix"
)

// broadcast is the Ethernet address of everybody.
var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// IP protocols.
const (
	icmp4 = unix.IPPROTO_ICMP
	icmp6 = unix.IPPROTO_ICMPV6
	tcp   = unix.IPPROTO_TCP
	udp   = unix.IPPROTO_UDP
	// marker is for experiments (RFC 3692): a test's own last packet.
	marker = 253
)

// ether is an Ethernet frame; the type is that of an IP packet.
func ether(to, from net.HardwareAddr, packet []byte) []byte {
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	return slices.Concat(to, from, binary.BigEndian.AppendUint16(nil, kind), packet)
}

// vlan is ether with an 802.1Q tag.
func vlan(to, from net.HardwareAddr, id uint16, packet []byte) []byte {
	f := ether(to, from, packet)
	tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_8021Q), id)
	return slices.Concat(f[:12], tag, f[12:])
}

// packet is an IP packet of the addresses' family.
func packet(src, dst netip.Addr, proto byte, payload []byte) []byte {
	if src.Is6() {
		h := make([]byte, 8, 40)
		h[0], h[6], h[7] = 0x60, proto, 255
		binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
		return slices.Concat(h, src.AsSlice(), dst.AsSlice(), payload)
	}
	return packet4(src, dst, proto, payload, nil, 0)
}

// packet4 is an IPv4 packet with options and with the word of flags and fragment
// offset (RFC 791, 3.1).
func packet4(src, dst netip.Addr, proto byte, payload, options []byte, fragment uint16) []byte {
	h := make([]byte, 12, 20)
	h[0] = 0x40 | byte(5+len(options)/4)
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(options)+len(payload)))
	h[5] = 1 // identification
	binary.BigEndian.PutUint16(h[6:], fragment)
	h[8], h[9] = 64, proto
	h = slices.Concat(h, src.AsSlice(), dst.AsSlice(), options)
	binary.BigEndian.PutUint16(h[10:], echo.Checksum(h))
	return append(h, payload...)
}

// withSum puts the checksum of a transport's message, with its pseudo header, at
// an offset of the message.
func withSum(src, dst netip.Addr, proto byte, message []byte, at int) []byte {
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), binary.BigEndian.AppendUint32(nil, uint32(len(message))), []byte{0, 0, 0, proto})
	sum := echo.Checksum(append(pseudo, message...))
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(message[at:], sum)
	return message
}

// udpPacket is a UDP datagram (RFC 768).
func udpPacket(src, dst netip.Addr, from, to uint16, data string) []byte {
	m := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(m, from)
	binary.BigEndian.PutUint16(m[2:], to)
	binary.BigEndian.PutUint16(m[4:], uint16(8+len(data)))
	return packet(src, dst, udp, withSum(src, dst, udp, append(m, data...), 6))
}

// TCP flags (RFC 9293, 3.1).
const (
	fin = 1 << iota
	syn
	rst
	_
	ack
)

// tcpPacket is a TCP segment without data.
func tcpPacket(src, dst netip.Addr, from, to uint16, flags byte, seq, acked uint32) []byte {
	return tcpOptions(src, dst, from, to, flags, seq, acked, nil)
}

// tcpOptions is tcpPacket with options, whose length is a multiple of 4 bytes.
func tcpOptions(src, dst netip.Addr, from, to uint16, flags byte, seq, acked uint32, options []byte) []byte {
	m := append(make([]byte, 20, 60), options...)
	binary.BigEndian.PutUint16(m, from)
	binary.BigEndian.PutUint16(m[2:], to)
	binary.BigEndian.PutUint32(m[4:], seq)
	binary.BigEndian.PutUint32(m[8:], acked)
	m[12], m[13] = byte(len(m)/4<<4), flags
	binary.BigEndian.PutUint16(m[14:], 1000)
	return packet(src, dst, tcp, withSum(src, dst, tcp, m, 16))
}

// icmpPacket is an ICMP or ICMPv6 message of the addresses' family.
func icmpPacket(src, dst netip.Addr, kind, code byte, body []byte) []byte {
	m := append([]byte{kind, code, 0, 0}, body...)
	if src.Is6() {
		return packet(src, dst, icmp6, withSum(src, dst, icmp6, m, 2))
	}
	binary.BigEndian.PutUint16(m[2:], echo.Checksum(m))
	return packet(src, dst, icmp4, m)
}
