package hostile

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/echo"
	"github.com/berth-net/berth/internal/nettest"
)

// shared sends frames whose contents stay in a page that both the pod and the kernel have. The page
// gets into a datagram by splice, and a VXLAN link in the pod takes off what the kernel has put
// before it.
type shared struct {
	socket, in, out int // in and out are a pipe's ends
	page            []byte
}

var vxlanHead = []byte{8, 0, 0, 0, 0, 0, 7, 0} // of VNI 7 (RFC 7348, 5)

func (p *pod) shared(t *testing.T) *shared {
	t.Helper()
	for _, command := range []string{
		"ip link add vx0 type vxlan id 7 dstport 4789 local 127.0.0.1", "ip link set lo up", "ip link set vx0 up",
		"tc qdisc add dev vx0 clsact",
		"tc filter add dev vx0 ingress protocol all u32 match u32 0 0 action mirred egress redirect dev eth0",
	} {
		nettest.Run(t, p.at, command)
	}
	s := &shared{}
	must(t, p.at.Do(func() (err error) {
		s.socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { unix.Close(s.socket) })
	must(t, unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)) // a checksum would be wrong after a change
	must(t, unix.Connect(s.socket, &unix.SockaddrInet4{Port: 4789, Addr: [4]byte{127, 0, 0, 1}}))
	var pipe [2]int
	must(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	s.out, s.in = pipe[0], pipe[1]
	t.Cleanup(func() { unix.Close(s.out); unix.Close(s.in) })
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	must(t, err)
	s.page = page
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return s
}

func (s *shared) send(t *testing.T, frame []byte) {
	t.Helper()
	s.change(frame)
	size := copy(s.page, vxlanHead) + len(frame)
	whole := unix.Iovec{Base: &s.page[0]}
	whole.SetLen(size)
	if n, err := unix.Vmsplice(s.in, []unix.Iovec{whole}, 0); err != nil || n != size {
		t.Fatalf("vmsplice: %d, %v", n, err)
	}
	if n, err := unix.Splice(s.out, nil, s.socket, nil, size, 0); err != nil || int(n) != size {
		t.Fatalf("splice: %d, %v", n, err)
	}
}

// change changes the frame that was sent.
func (s *shared) change(frame []byte) { copy(s.page[len(vxlanHead):], frame) }

// changeBehindTheRules sends an IP packet from a to v, and changes the packet while it waits in a queue behind all rules
// of the node. It returns when v has got the packet. w is a's wire, and heard is what v hears.
func (s *shared) changeBehindTheRules(t *testing.T, a, v *pod, w *wire, heard *tap, read, then []byte) {
	t.Helper()
	own, victim := a.own(v.ip4), v.ip4
	if read[0]>>4 == 6 {
		own, victim = a.ip6, v.ip6
	}
	mark := func(size int) { w.send(ether(a.mac, w.mac, packet(own, victim, marker, make([]byte, size)))) }
	marks := func() int { return heard.count(func(s seen) bool { return s == seen{own, victim, marker} }) }
	nettest.Run(t, nil, "tc qdisc add dev "+v.host+" root tbf rate 8bit burst 1600 limit 100000")
	nettest.Eventually(t, "a packet that waits", func() bool { mark(1400); return waiting(t, v.host) > 0 })
	before := waiting(t, v.host)
	s.send(t, ether(a.mac, w.mac, read))
	nettest.Eventually(t, "the packet waits behind the rules", func() bool { return waiting(t, v.host) > before })
	s.change(ether(a.mac, w.mac, then))
	nettest.Run(t, nil, "tc qdisc change dev "+v.host+" root tbf rate 1gbit burst 100000 limit 100000")
	passed := marks()
	nettest.Eventually(t, "what is sent behind it", func() bool { mark(8); return waiting(t, v.host) == 0 && marks() > passed })
	nettest.Run(t, nil, "tc qdisc del dev "+v.host+" root")
}

// waiting is how many packets wait in a link's queue, behind all rules.
func waiting(t *testing.T, link string) (n uint32) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	must(t, err)
	queues := nettest.List(t, func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	for _, q := range queues {
		if s := q.Attrs().Statistics; s != nil {
			n += s.Queue.Qlen
		}
	}
	return n
}

// aboutFar returns a copy of an ICMP message (packet), changed so that the message is an error about a
// packet to somebody. aboutFar sets the last two bytes of the message so that its checksum stays right.
func aboutFar(src, dst, somebody netip.Addr, packet []byte) []byte {
	evil := slices.Clone(packet)
	head, at, pseudo := 20, 16, []byte(nil)
	if src.Is6() {
		head, at = 40, 24
		pseudo = slices.Concat(src.AsSlice(), dst.AsSlice(), binary.BigEndian.AppendUint32(nil, uint32(len(packet)-head)), []byte{0, 0, 0, icmp6})
	}
	message := evil[head:]
	copy(message[8+at:], somebody.AsSlice())
	last := message[len(message)-2:]
	last[0], last[1] = 0, 0
	binary.BigEndian.PutUint16(last, echo.Checksum(slices.Concat(pseudo, message)))
	return evil
}

// A pod sends a packet to another pod from memory that both the pod and the kernel have. It changes
// the packet when the rules have read it, while the packet waits in a queue: an echo request
// becomes an error about an answer that was never sent, and an error about a connection with the
// pod becomes an error about somebody else. The other pod hears the packet as the rules have read it.
func TestPacketsDoNotChangeBehindTheRules(t *testing.T) {
	n := newNode(t, plain)
	a, v := n.add("a"), n.add("v")
	st, err := n.API.Status(t.Context(), "")
	must(t, err)
	defer n.hang()()
	for _, name := range []string{"ports_in", "ports_out", "ports_back", "nat_out"} { // NAT copies headers, too, but late
		nft(t, fmt.Sprintf("flush chain inet berth-%[1]s %[2]s\ndelete chain inet berth-%[1]s %[2]s", st.Instance, name))
	}
	w, page, heard := a.wire(t), a.shared(t), listen(t, v.at)
	for _, as := range []struct {
		own, victim, far, further netip.Addr
		echo                      byte
	}{
		{a.ip4, v.ip4, far4, far4.Next(), 8},
		{a.ip6, v.ip6, netip.MustParseAddr("fd00:88::ffff:ffff:1"), netip.MustParseAddr("fd00:88::ffff:ffff:2"), 128},
	} {
		talk := func() []byte { // an error about what the victim has said to the pod
			var conn net.PacketConn
			must(t, v.at.Do(func() (err error) {
				conn, err = net.ListenPacket("udp", netip.AddrPortFrom(as.victim, 0).String())
				return err
			}))
			t.Cleanup(func() { conn.Close() })
			_, err := conn.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(as.own, 4433)))
			must(t, err)
			port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
			return tooBig(as.own, as.victim, 1280, udpPacket(as.victim, as.own, port, 4433, strings.Repeat("x", 500)))
		}
		head := 20
		if as.own.Is6() {
			head = 40
		}
		lie, truth := lies(as.own, as.victim, as.far), talk()
		for _, way := range []struct {
			what       string
			read, then []byte
			to         netip.Addr
		}{
			{"an echo request", icmpPacket(as.own, as.victim, as.echo, 0, lie[head+4:]), lie, as.far},
			{"a true error", truth, aboutFar(as.own, as.victim, as.further, truth), as.further},
		} {
			t.Run(fmt.Sprint(way.what, " from ", as.own), func(t *testing.T) {
				page.changeBehindTheRules(t, a, v, w, heard, way.read, way.then)
				out, err := nettest.Command(v.at, nettest.Program(t, "ip"), "route", "get", way.to.String()).CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if strings.Contains(string(out), " mtu ") {
					t.Errorf("the victim believes what no rule has read: %s", out)
				}
			})
		}
	}
}

// A pod sends a TCP segment, a datagram or an SCTP packet from memory that both the pod and the kernel have, and changes
// ports or flags when the rules and connection tracking have read them. The receiver gets what they have read, also where the kernel does not copy headers for itself (ip_early_demux).
func TestTransportsDoNotChangeBehindTheRules(t *testing.T) {
	n := newNode(t, plain)
	nettest.Sysctl(t, nil, "ipv4/ip_early_demux", "0")
	a, v := n.add("a"), n.add("v")
	st, err := n.API.Status(t.Context(), "")
	must(t, err)
	defer n.hang()()
	for _, name := range []string{"ports_in", "ports_out", "ports_back", "nat_out"} { // NAT copies headers, too
		nft(t, fmt.Sprintf("flush chain inet berth-%[1]s %[2]s\ndelete chain inet berth-%[1]s %[2]s", st.Instance, name))
	}
	w, page, heard := a.wire(t), a.shared(t), listen(t, v.at)
	const sctp, initiation = unix.IPPROTO_SCTP, 1
	chunk := func(from, to uint16) []byte {
		head := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
		return packet(a.ip4, v.ip4, sctp, slices.Concat(head, make([]byte, 8), []byte{initiation, 0, 0, 20}, make([]byte, 16)))
	}
	for name, way := range map[string]struct{ read, then []byte }{
		"flags":          {tcpPacket(a.ip4, v.ip4, 1001, 2002, syn, 1, 0), tcpPacket(a.ip4, v.ip4, 1001, 2002, ack, 1, 0)},
		"ports":          {tcpPacket(a.ip4, v.ip4, 1001, 2002, syn, 1, 0), tcpPacket(a.ip4, v.ip4, 2002, 1001, syn, 1, 0)},
		"a datagram":     {udpPacket(a.ip4, v.ip4, 1001, 2002, "hello"), udpPacket(a.ip4, v.ip4, 2002, 1001, "hello")},
		"an SCTP packet": {chunk(1001, 2002), chunk(2002, 1001)},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan []byte, 100)
			overhears(t, v.at, func(p []byte) {
				if p[9] == way.read[9] && netip.AddrFrom4([4]byte(p[12:])) == a.ip4 {
					got <- p
				}
			})
			page.changeBehindTheRules(t, a, v, w, heard, way.read, way.then)
			if p := <-got; !slices.Equal(p[20:36], way.read[20:36]) {
				t.Errorf("v gets %x, not %x", p[20:36], way.read[20:36])
			}
		})
	}
}
