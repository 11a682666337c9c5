package hostile

import (
	"encoding/json"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// overhears calls back with each IPv4 packet on a namespace's eth0, until the test ends.
func overhears(t *testing.T, at *ns.Netns, heard func(packet []byte)) {
	t.Helper()
	w := openWire(t, at, true)
	patience := unix.Timeval{Usec: 20_000}
	must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	buf := make([]byte, 2048)
	t.Cleanup(func() { unix.Close(w.fd) })
	nettest.Meanwhile(t, func() {
		if n, _, err := unix.Recvfrom(w.fd, buf, 0); err == nil && n >= 14+20+8 && buf[14]>>4 == 4 {
			heard(slices.Clone(buf[14:n]))
		}
	})
}

// A pod does not answer a probe's echo, and sends the same echo to an address where Berth's rules
// drop it. The pod also sends TCP segments there, from the port of the other pod's probe. The pod does the
// same with answers, also in the name of the machine that should answer. The probe names no rule,
// because no rule has dropped a packet of the probe's own.
func TestProbeIsNotMisled(t *testing.T) {
	n := newNode(t, plain)
	a, b := n.add("a"), n.add("b")
	metadata := netip.MustParseAddr("169.254.169.254") // blockedCIDRs
	nettest.Sysctl(t, b.at, "ipv4/icmp_echo_ignore_all", "1")
	nettest.Run(t, n.lan, "nft add table inet mute")
	nettest.Run(t, n.lan, "nft add chain inet mute in { type filter hook input priority 0 ; policy drop ; }")
	for _, c := range []struct {
		what     string
		kind     byte // of the echo
		segments func(from, to uint16) []byte
	}{
		{"packets", 8, func(from, to uint16) []byte { return tcpPacket(b.ip4, metadata, from, to, syn, 1, 0) }},
		{"answers", 0, func(from, to uint16) []byte { return tcpPacket(b.ip4, metadata, to, from, syn|ack, 1, 1) }},
		{"others' answers", 0, func(from, to uint16) []byte { return tcpPacket(lan4, a.ip4, to, from, syn|ack, 1, 1) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := b.wire(t)
			overhears(t, b.at, func(p []byte) {
				if p[9] == icmp4 && p[20] == 8 && netip.AddrFrom4([4]byte(p[16:])) == b.ip4 {
					w.send(ether(b.mac, w.mac, icmpPacket(b.ip4, metadata, c.kind, 0, p[24:])))
				}
			})
			overhears(t, a.at, func(p []byte) {
				if p[9] == tcp && netip.AddrFrom4([4]byte(p[16:])) == lan4 {
					w.send(ether(b.mac, w.mac, c.segments(uint16(p[20])<<8|uint16(p[21]), uint16(p[22])<<8|uint16(p[23]))))
				}
			})
			out, _ := exec.Command(filepath.Join(n.bin, "berth"), "--root", n.Root, "check", "--probe", a.ip4.String(),
				"--to", netip.AddrPortFrom(lan4, 81).String(), "--wait", "1s", "-o", "json").Output()
			type step struct {
				Sent string
				Why  []string
			}
			var said struct{ Probes []struct{ Steps []step } }
			if err := json.Unmarshal(out, &said); err != nil || len(said.Probes) != 1 {
				t.Fatalf("%v: %s", err, out)
			}
			for sent, want := range map[string]string{
				"echo " + a.ip4.String() + " to " + b.ip4.String(): "the packet has left the node, and pod b does not answer the node, either",
				"TCP " + a.ip4.String() + " to 192.0.2.2:81":       "the packet has left the node, and nobody has answered",
			} {
				i := slices.IndexFunc(said.Probes[0].Steps, func(s step) bool { return s.Sent == sent })
				if i < 0 || !strings.HasPrefix(strings.Join(said.Probes[0].Steps[i].Why, "; "), want) {
					t.Errorf("want of %s: %s; got %s", sent, want, out)
				}
			}
		})
	}
	n.wantGone()
}
