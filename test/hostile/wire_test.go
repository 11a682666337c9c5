package hostile

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// wire sends raw frames out of a namespace's eth0.
type wire struct {
	fd  int
	mac net.HardwareAddr // eth0's own
}

// openWire opens a packet socket (packet(7)) that only sends, or one that hears
// all that comes and goes.
func openWire(t *testing.T, at *ns.Netns, hears bool) *wire {
	t.Helper()
	w := &wire{}
	err := at.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		w.mac = eth0.HardwareAddr
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		to := &unix.SockaddrLinklayer{Ifindex: eth0.Index}
		if hears {
			to.Protocol = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		}
		return unix.Bind(w.fd, to)
	})
	if err != nil {
		t.Fatalf("opening a packet socket: %v", err)
	}
	return w
}

// wire opens a wire at the pod's eth0, until the test ends.
func (p *pod) wire(t *testing.T) *wire {
	t.Helper()
	w := openWire(t, p.at, false)
	t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// send sends a frame. Where the link is down or gone, or the queue full, the frame
// is as good as lost.
func (w *wire) send(frame []byte) { _, _ = unix.Write(w.fd, frame) }

// seen is a packet on a wire.
type seen struct {
	src, dst netip.Addr
	proto    byte
}

func (s seen) String() string { return fmt.Sprintf("%s to %s, protocol %d", s.src, s.dst, s.proto) }

// tap hears the IP packets that pass an eth0.
type tap struct {
	mu    sync.Mutex
	heard map[seen]int
}

// listen taps a namespace's eth0 until the test ends.
func listen(t *testing.T, at *ns.Netns) *tap {
	t.Helper()
	w := openWire(t, at, true)
	p := &tap{heard: map[seen]int{}}
	patience := unix.Timeval{Usec: 20_000}
	must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	if unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) != nil {
		_ = unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20) // as much as a plain user may have
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p.hear(w.fd, done)
	}()
	t.Cleanup(func() { close(done); <-ended; unix.Close(w.fd) })
	return p
}

func (p *tap) hear(fd int, done chan struct{}) {
	buf := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		select {
		case <-done:
			return
		default:
		}
		if err != nil || n < 34 { // nothing for a while, or eth0 is down
			continue
		}
		var s seen
		switch binary.BigEndian.Uint16(buf[12:]) {
		case unix.ETH_P_IP:
			s = seen{netip.AddrFrom4([4]byte(buf[26:30])), netip.AddrFrom4([4]byte(buf[30:34])), buf[23]}
		case unix.ETH_P_IPV6:
			if n < 54 {
				continue
			}
			s = seen{netip.AddrFrom16([16]byte(buf[22:38])), netip.AddrFrom16([16]byte(buf[38:54])), buf[20]}
		default:
			continue
		}
		p.mu.Lock()
		p.heard[s]++
		p.mu.Unlock()
	}
}

// count returns how many packets were heard for which what is true.
func (p *tap) count(what func(seen) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, times := range p.heard {
		if what(s) {
			n += times
		}
	}
	return n
}

// all returns the different packets that were heard and for which what is true.
func (p *tap) all(what func(seen) bool) (list []seen) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.heard {
		if what(s) {
			list = append(list, s)
		}
	}
	return list
}
