package hostile

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

// floodPort is where floods go.
const floodPort = 7

// flood is a pod that sends without end, each packet with its number.
type flood struct {
	src   netip.Addr // the source that the packets name
	begun atomic.Uint64
	stop  func()
}

// flood sends from a pod to another's address until the test ends, or stop.
func (p *pod) flood(t *testing.T, src, to netip.Addr) *flood {
	t.Helper()
	f, w := &flood{src: src}, p.wire(t)
	f.stop = nettest.Again(func() {
		time.Sleep(500 * time.Microsecond) // the machine has others to serve
		number := binary.BigEndian.AppendUint64(nil, f.begun.Add(1))
		w.send(ether(p.mac, w.mac, udpPacket(src, to, floodPort, floodPort, string(number))))
	})
	t.Cleanup(f.stop)
	return f
}

// ear hears floods, in a pod.
type ear struct {
	mu   sync.Mutex
	last map[netip.Addr]uint64 // the highest number heard, by source
}

// ear opens an ear at a pod's IPv4 address until the test ends.
func (p *pod) ear(t *testing.T) *ear {
	t.Helper()
	e := &ear{last: map[netip.Addr]uint64{}}
	nettest.Hear(t, p.at, "udp", netip.AddrPortFrom(p.ip4, floodPort).String(), func(_ net.PacketConn, packet []byte, from net.Addr) {
		if len(packet) == 8 {
			e.mu.Lock()
			defer e.mu.Unlock()
			src := netip.MustParseAddrPort(from.String()).Addr().Unmap()
			e.last[src] = max(e.last[src], binary.BigEndian.Uint64(packet))
		}
	})
	return e
}

// heard is the highest number that came from a source.
func (e *ear) heard(src netip.Addr) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last[src]
}

// silent waits until floods have sent a hundred packets more, and until the ear has heard every
// flood that it can hear. It fails the test if the ear has heard a packet of a flood after the
// flood's mark. live is a flood that has to be heard.
func (e *ear) silent(t *testing.T, live *flood, floods []*flood, marks []uint64) {
	t.Helper()
	for _, f := range floods {
		more := f.begun.Load() + 100
		nettest.Eventually(t, "the flood to go on", func() bool { return f.begun.Load() > more })
	}
	now := live.begun.Load()
	nettest.Eventually(t, "a pod that lives to be heard", func() bool { return e.heard(live.src) > now })
	for i, f := range floods {
		if last := e.heard(f.src); last > marks[i] {
			t.Errorf("packet %d of %s is heard, and after %d none may be", last, f.src, marks[i])
		}
	}
}
