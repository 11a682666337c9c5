package node

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// association is a host port of SCTP.
const association = `{"hostPort":9899,"containerPort":99,"protocol":"sctp"}`

// Host ports of SCTP are mapped like those of TCP and UDP: from outside, from the node, by its
// loopback, and from the pod itself. Not every kernel has SCTP's sockets; connection tracking and NAT
// know SCTP all the same, so that a raw socket in the pod hears what a raw socket elsewhere says.
func TestHostPortsOfSCTP(t *testing.T) {
	hasAddresses(t)
	lan := machine(t)
	a := startUnwatched(t)
	pod := nettest.Pod(t)
	got := a.add("c", pod, hostPorts(association))
	inside(t, pod, func() error { return nettest.LoopbackUp() })
	for i, c := range []struct {
		name, to string
		from     *ns.Netns
		client   string // whom the pod sees; "": not the pod's own address, and none of the loopback
	}{
		{"from outside", "198.51.100.8", lan, "198.51.100.9"}, {"from outside, IPv6", "2001:db8:9::8", lan, "2001:db8:9::9"},
		{"from the node", "192.0.2.1", nil, ""}, {"from the node, IPv6", "2001:db8::1", nil, ""},
		{"by 127.0.0.1", "127.0.0.1", nil, ""}, {"by ::1", "::1", nil, ""},
		{"from the pod itself", "192.0.2.1", pod, ""}, {"from the pod itself, IPv6", "2001:db8::1", pod, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := netip.MustParseAddr(c.to)
			var client, server net.PacketConn
			inside(t, pod, func() (err error) { server, err = net.ListenPacket(sctpNetwork(to), ""); return err })
			defer server.Close()
			inside(t, c.from, func() (err error) { client, err = net.ListenPacket(sctpNetwork(to), ""); return err })
			defer client.Close()
			server.SetDeadline(time.Now().Add(nettest.Deadline))
			sent := sctpInit(uint16(4000+i), 9899)
			_, err := client.WriteTo(sent, &net.IPAddr{IP: to.AsSlice()})
			must(t, err)
			buf := make([]byte, 100)
			n, from, err := server.ReadFrom(buf)
			must(t, err)
			heard := buf[:n]
			// Whoever is masqueraded may have another port.
			if want := sctpInit(binary.BigEndian.Uint16(heard), 99); !bytes.Equal(heard, want) {
				t.Errorf("the pod hears %x, want %x", heard, want)
			}
			if want := sctpInit(uint16(4000+i), 99); c.client != "" && (from.String() != c.client || !bytes.Equal(heard, want)) {
				t.Errorf("the pod hears %x from %s, want %x from %s", heard, from, want, c.client)
			}
			seen := netip.MustParseAddr(from.String())
			if seen.IsLoopback() || seen == got.addrs[0] || seen == got.addrs[1] {
				t.Errorf("the pod hears it from %s, and its answer would not come back", seen)
			}
		})
	}
	a.del("c", wait)
	if left := elements(t, a); left != "" {
		t.Errorf("after the DEL the maps have\n%s", left)
	}
	for client, to := range map[string]string{"198.51.100.9": "198.51.100.8", "2001:db8:9::9": "2001:db8:9::8"} {
		chatter(t, lan, "sctp", netip.MustParseAddr(to))
		nettest.Eventually(t, "a flow of "+client+" with the node itself", func() bool {
			for line := range strings.Lines(nettest.Snapshot(t, nil).Only("conntrack").String()) {
				if strings.HasPrefix(line, "conntrack proto 132 src "+client+" dst "+to+" ") && strings.Contains(line, " reply src "+to+" ") {
					return true
				}
			}
			return false
		})
	}
}

// sctpNetwork is the name of the network of raw sockets that speak SCTP with an address.
func sctpNetwork(a netip.Addr) string {
	if a.Is4() {
		return "ip4:132"
	}
	return "ip6:132"
}

// sctpInit returns a packet that begins an SCTP association (RFC 9260).
func sctpInit(from, to uint16) []byte {
	p := binary.BigEndian.AppendUint16(nil, from)
	p = binary.BigEndian.AppendUint16(p, to)
	p = append(p, make([]byte, 8)...)                             // verification tag 0; the checksum is still to come
	p = append(p, 1, 0, 0, 20)                                    // INIT, of 20 bytes
	p = append(p, 0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 9) // tag, window, streams, first number
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}
