package demo

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Address families, as `ip` names them.
const (
	family4 = "inet"
	family6 = "inet6"
)

var families = []string{family4, family6}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return family4
	}
	return family6
}

// icmp says how each family's echos are sent (RFC 792, RFC 4443). Raw sockets
// need CAP_NET_RAW, which the root of a user namespace has there.
var icmp = map[string]struct {
	network, any   string
	request, reply byte
}{
	family4: {"ip4:icmp", "0.0.0.0", 8, 0},
	family6: {"ip6:ipv6-icmp", "::", 128, 129},
}

// pinger sends echos from a pod.
type pinger struct {
	family string
	conn   net.PacketConn
}

// pinger opens a raw socket in the pod, which stays there.
func (p *pod) pinger(family string) (*pinger, error) {
	g := &pinger{family: family}
	err := p.netns.Do(func() (err error) {
		g.conn, err = net.ListenPacket(icmp[family].network, icmp[family].any)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening an ICMP socket in %s: %w", p.runtime.ContainerID, err)
	}
	return g, nil
}

func (g *pinger) close() { g.conn.Close() }

// ping sends one echo request, as `ping -c 1` does, and reports whether its
// reply came in time.
func (g *pinger) ping(to netip.Addr, wait time.Duration) bool {
	proto := icmp[g.family]
	// Type, code and checksum, then what comes back as it is: identifier,
	// sequence number and data, all of them random.
	message := make([]byte, 24)
	message[0] = proto.request
	rand.Read(message[4:])
	if g.family == family4 { // the kernel does it for ICMPv6
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	}
	if _, err := g.conn.WriteTo(message, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return false // nowhere to send it to
	}
	if err := g.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return false
	}
	buf := make([]byte, 1500)
	for {
		n, _, err := g.conn.ReadFrom(buf)
		if err != nil {
			return false
		}
		if n == len(message) && buf[0] == proto.reply && bytes.Equal(buf[4:n], message[4:]) {
			return true
		}
	}
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

// pingAll pings every pod of to from every other pod of from, in a family, and
// returns how many echos were sent and how many answered.
func pingAll(from, to []*pod, family string, wait time.Duration) (sent, answered int, err error) {
	for _, p := range from {
		g, err := p.pinger(family)
		if err != nil {
			return sent, answered, err
		}
		for _, q := range to {
			if p == q {
				continue
			}
			sent++
			if g.ping(q.addresses[family], wait) {
				answered++
			}
		}
		g.close()
	}
	return sent, answered, nil
}
