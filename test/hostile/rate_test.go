package hostile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

// The limit of what a pod sends also holds if the pod evades the token bucket of its own end: by
// packet sockets that pass no queue, for which CAP_NET_RAW is enough, or by taking the bucket away.
func TestSendsFaster(t *testing.T) {
	nettest.NeedPrograms(t)
	const rate, burst = 1_000_000, 40_000 // bytes a second, and bytes
	for name, escape := range map[string]func(*testing.T, *pod, *wire){
		"past its queue": func(t *testing.T, _ *pod, w *wire) {
			must(t, unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
		},
		"without its queue": func(t *testing.T, p *pod, _ *wire) { nettest.Run(t, p.at, "tc qdisc del dev eth0 root") },
	} {
		for _, size := range []int{1, 1400} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, size), func(t *testing.T) {
				n := newNode(t, plain)
				fast, err := n.tryAdd("fast", fmt.Sprintf(`"runtimeConfig":{"bandwidth":{"egressRate":%d,"egressBurst":%d}}`, rate*8, burst*8))
				must(t, err)
				sink := n.add("sink")
				w := fast.wire(t)
				escape(t, fast, w)
				for range 2 { // from two processors
					fast.pour(t, w, ether(fast.mac, w.mac, udpPacket(fast.ip4, sink.ip4, 1234, 9, strings.Repeat("x", size))))
				}
				sent := func() uint64 { return nettest.Received(t, nil, fast.host) }
				first, got := sent(), func() uint64 { return nettest.Received(t, sink.at, "eth0") }
				before := got()
				nettest.WantAtMost(t, rate, burst+rate/10, got)
				if sent, got := sent()-first, got()-before; sent < 2*got {
					t.Errorf("the pod sent %d bytes, of which %d passed: the test does not pass the pod's queue", sent, got)
				}
			})
		}
	}
}

// A pod sends segments in one packet (GSO), by a link whose MTU is larger than the pod's: each segment has more
// bytes of extension headers than a frame of the pod's MTU has room for.
func TestSendsFasterByLongHeaders(t *testing.T) {
	nettest.NeedPrograms(t)
	const rate, burst, segment, segments = 1_000_000, 40_000, 1400, 10
	n := newNode(t, "masquerade: {excludedCIDRs: ['2001:db8:9::/64']}\n"+plain) // elsewhere nothing with such headers leaves the node
	beyond, to := nettest.Node(t), netip.MustParseAddr("2001:db8:9::2")
	nettest.Run(t, nil, "ip link add up1 mtu 9000 type veth peer name eth0 mtu 9000 netns "+filepath.Base(beyond.Ref().Path))
	nettest.Run(t, beyond, "ip link set eth0 up")
	nettest.Run(t, beyond, "ip addr add 2001:db8:9::2/64 dev eth0 nodad")
	nettest.Run(t, nil, "ip link set up1 gso_max_segs 1 up") // as of a card that leaves the cutting to the kernel
	nettest.Run(t, nil, "ip addr add 2001:db8:9::1/64 dev up1 nodad")
	fast, err := n.tryAdd("fast", fmt.Sprintf(`"runtimeConfig":{"bandwidth":{"egressRate":%d,"egressBurst":%d}}`, rate*8, burst*8))
	must(t, err)
	w := fast.wire(t)
	must(t, unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	datagram := make([]byte, 8+segments*segment)
	binary.BigEndian.PutUint16(datagram[4:], uint16(len(datagram)))
	extensions := bytes.Repeat(destinationOptions(udp, 1848), 4)
	for at := 0; at < 3*1848; at += 1848 {
		extensions[at] = unix.IPPROTO_DSTOPTS
	}
	frame := ether(fast.mac, w.mac, packet(fast.ip6, to, unix.IPPROTO_DSTOPTS, slices.Concat(extensions, datagram)))
	fast.pour(t, w, append(segmented(len(frame)-len(datagram), segment), frame...))
	nettest.WantAtMost(t, rate, burst+rate/10, func() uint64 { return nettest.Received(t, beyond, "eth0") })
}

// destinationOptions is an extension header of IPv6 of so many bytes, without an option (RFC 8200, section 4.6).
func destinationOptions(next byte, bytes int) []byte {
	return append([]byte{next, byte(bytes/8 - 1)}, make([]byte, bytes-2)...)
}

// segmented is what stands before a frame that a packet socket sends with PACKET_VNET_HDR, if the kernel is to cut
// the payload of its UDP header, which begins at an offset of the frame, into segments of so many bytes (struct
// virtio_net_hdr, linux/virtio_net.h).
func segmented(at, segment int) []byte {
	h := []byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_UDP_L4}
	for _, v := range []int{at + 8, segment, at, 6} { // length of headers, gso_size, csum_start, csum_offset
		h = binary.NativeEndian.AppendUint16(h, uint16(v))
	}
	return h
}

// A pod that deletes its interface gets a new link, and no new burst with it.
func TestRemadeLinkHasNoBurst(t *testing.T) {
	nettest.NeedPrograms(t)
	const rate = 1000 // bytes a second; a burst is one packet of 1514 bytes, and there is room for 100 ms
	n := newNode(t, plain)
	fast, err := n.tryAdd("fast", fmt.Sprintf(`"runtimeConfig":{"bandwidth":{"egressRate":%d,"egressBurst":12112}}`, rate*8))
	must(t, err)
	sink := n.add("sink")
	got := func() uint64 { return nettest.Received(t, sink.at, "eth0") }
	before, begun := got(), time.Now()
	nettest.Run(t, fast.at, "ip link del eth0")
	nettest.Eventually(t, "the pod's new link", func() bool { return n.check(fast) == nil })
	w := fast.wire(t)
	must(t, unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
	fast.pour(t, w, ether(fast.mac, w.mac, udpPacket(fast.ip4, sink.ip4, 1234, 9, "x")))
	nettest.Eventually(t, "as much as a burst", func() bool { return got()-before > 1600 })
	if passed, took := got()-before, time.Since(begun); float64(passed) > 200+rate*took.Seconds() {
		t.Errorf("%d bytes passed within %v", passed, took)
	}
}

// pour sends a frame without end, until the test ends.
func (p *pod) pour(t *testing.T, w *wire, frame []byte) {
	nettest.Meanwhile(t, func() { w.send(frame) })
}
