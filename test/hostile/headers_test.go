package hostile

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// behind puts extension headers between an IPv6 header and the transport: destination options (RFC 8200, 4.6) and an
// authentication header (RFC 4302), or one of the two.
func behind(packet []byte, options, ah bool) []byte {
	h, next := slices.Clone(packet[:40]), packet[6]
	var between []byte
	if ah {
		between = append([]byte{next, 2}, make([]byte, 14)...) // 16 bytes, in words of 4 without the first two
		next = unix.IPPROTO_AH
	}
	if options {
		between = append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, between...) // padding (PadN) of 6 bytes
		next = unix.IPPROTO_DSTOPTS
	}
	h[6] = next
	binary.BigEndian.PutUint16(h[4:], uint16(len(packet)-40+len(between)))
	return slices.Concat(h, between, packet[40:])
}

// A pod hides what it sends behind IPv6 extension headers: behind an authentication header it is UDP or TCP to
// connection tracking and to the rewriting of ports, and to nftables it is not. The pod gets no port of the node by that, not one beyond those
// of masquerade, opens no connection that no rule counts, has nobody answer, and reaches nobody outside under the node's address.
func TestPodsHideNothingBehindHeaders(t *testing.T) {
	for name, is := range map[string]struct{ options, ah bool }{
		"AH": {ah: true}, "AH behind options": {options: true, ah: true}, "options": {options: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "masquerade: {ports: 20000-21023}\nconnections: 512\n"+plain)
			a, b := n.add("a"), n.add("b")
			heard, other := listen(t, n.lan), listen(t, b.at)
			lan6, node6 := nettest.Serve(t, n.lan, "udp6", "[2001:db8::2]:0"), nettest.Serve(t, nil, "udp6", "[2001:db8::1]:0")
			talk := func() bool { _, err := nettest.Talk(a.at, "udp6", lan6, oneTry); return err == nil }
			nettest.Eventually(t, "the pod to reach the machine outside", talk)
			w := a.wire(t)
			for i := range uint16(100) {
				w.send(ether(a.mac, w.mac, behind(udpPacket(a.ip6, lan6.Addr(), 100+i, 7001, "hear me"), is.options, is.ah)))
				w.send(ether(a.mac, w.mac, behind(udpPacket(a.ip6, lan6.Addr(), 2000+i, 7001, "hear me"), is.options, is.ah)))
				w.send(ether(a.mac, w.mac, behind(tcpPacket(a.ip6, b.ip6, 100+i, 7001, syn, 1, 0), is.options, is.ah)))
				w.send(ether(a.mac, w.mac, behind(udpPacket(a.ip6, node6.Addr(), 100+i, node6.Port(), "answer me"), is.options, is.ah)))
			}
			nettest.Eventually(t, "the node to have seen all", talk)
			out, err := exec.Command("conntrack", "-L", "-f", "ipv6").Output()
			must(t, err)
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, fmt.Sprintf("src=%s ", a.ip6)) && strings.Contains(line, " dport=7001 ") {
					t.Fatalf("the pod has a connection: %s", line)
				}
			}
			if n := begun(t, node6.Addr()); n > 0 { // its answers would be its own connections
				t.Errorf("the node has begun %d connections", n)
			}
			hidden := func(s seen) bool { return s.proto == unix.IPPROTO_AH || s.proto == unix.IPPROTO_DSTOPTS }
			if got := heard.all(hidden); len(got) > 0 {
				t.Errorf("a machine outside hears %v", got)
			}
			if got := other.all(hidden); len(got) > 0 { // its answers would be its own connections
				t.Errorf("another pod hears %v", got)
			}
		})
	}
}

// A pod hides what it sends to a blocked address behind extension headers, and behind them it looks like a question to a
// name server, which may pass. Where packets go there with the pod's own address (excludedCIDRs), nothing leaves.
func TestNothingHiddenGoesToBlockedAddresses(t *testing.T) {
	n := newNode(t, "masquerade: {excludedCIDRs: [fc00::/7]}\n"+plain)
	a, heard := n.add("a"), listen(t, n.lan)
	blocked := netip.MustParseAddr("fd00:ec2::254")
	w := a.wire(t)
	question := udpPacket(a.ip6, blocked, 100, 53, "who is")
	questions := func() bool { return heard.count(func(s seen) bool { return s.dst == blocked && s.proto == udp }) > 0 }
	w.send(ether(a.mac, w.mac, behind(question, true, false)))
	nettest.Eventually(t, "the machine outside hears a plain question", func() bool {
		w.send(ether(a.mac, w.mac, question))
		return questions()
	})
	if got := heard.all(func(s seen) bool { return s.proto == unix.IPPROTO_DSTOPTS }); len(got) > 0 {
		t.Errorf("a machine outside hears %v", got)
	}
}
