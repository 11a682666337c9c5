package node

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/berth-net/berth/internal/kernel/ns"
	"github.com/berth-net/berth/internal/nettest"
)

// earPort is the UDP port that ears listen at.
const earPort = 4789

// ear hears every sender that can reach an address, whether or not an answer would find its way
// back.
type ear struct {
	at    netip.AddrPort
	mu    sync.Mutex
	heard map[netip.Addr]bool
}

// listen opens ears at addresses of a namespace (nil: the test's node) until
// the test ends.
func listen(t *testing.T, at *ns.Netns, addrs ...netip.Addr) []*ear {
	t.Helper()
	var ears []*ear
	for _, addr := range addrs {
		e := &ear{at: netip.AddrPortFrom(addr, earPort), heard: map[netip.Addr]bool{}}
		nettest.Hear(t, at, "udp", e.at.String(), e.hear)
		ears = append(ears, e)
	}
	return ears
}

func (e *ear) hear(_ net.PacketConn, _ []byte, from net.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard[netip.MustParseAddrPort(from.String()).Addr().Unmap()] = true
}

// hears reports whether the ear has heard an address since forget was last called.
func (e *ear) hears(from netip.Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard[from]
}

func (e *ear) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.heard)
}

// speak sends a packet from a pod to each ear. A packet that the pod cannot even
// send is as good as lost.
func speak(t *testing.T, pod *ns.Netns, ears []*ear) {
	t.Helper()
	for _, e := range ears {
		inside(t, pod, func() error {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(e.at))
			if err != nil {
				return nil
			}
			defer conn.Close()
			_, _ = conn.Write([]byte("?"))
			return nil
		})
	}
}

// heardBy waits until all ears hear a pod's addresses.
func heardBy(t *testing.T, ears []*ear, pod *ns.Netns, is attached) {
	t.Helper()
	nettest.Eventually(t, "the pod to be heard", func() bool {
		speak(t, pod, ears)
		for i, e := range ears {
			if !e.hears(is.addrs[i%2]) {
				return false
			}
		}
		return true
	})
}

// inside runs f in a namespace; nil is the test's own.
func inside(t *testing.T, at *ns.Netns, f func() error) {
	t.Helper()
	must(t, nettest.DoIn(at, f))
}
