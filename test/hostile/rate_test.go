package hostile

import (
	"fmt"
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
