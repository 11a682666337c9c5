package bpf

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

const mtu = 1500

// policer loads a policer.
func policer(t testing.TB, rate, burst uint64) *Policer {
	t.Helper()
	nettest.NeedPrograms(t)
	p, err := NewPolicer(rate, burst, mtu, false)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// passes runs a policer on a packet of size bytes, as the kernel does.
func passes(t testing.TB, p *Policer, size int) bool {
	t.Helper()
	said, _, err := p.program.Test(make([]byte, size))
	must(t, err)
	switch int32(said) {
	case next:
		return true
	case shot:
		return false
	}
	t.Fatalf("the program says %d", int32(said))
	return false
}

// At a byte a second the bucket gets nothing back while the test runs: exactly the burst's bytes pass,
// and nothing after them.
func TestBurst(t *testing.T) {
	p := policer(t, 1, 1514)
	for i, c := range []struct {
		size int
		want bool
	}{{1000, true}, {515, false}, {514, true}, {14, false}, {1514, false}} {
		if got := passes(t, p, c.size); got != c.want {
			t.Errorf("packet %d of %d bytes passes: %t", i, c.size, got)
		}
	}
}

// A spent policer has nothing left of its burst.
func TestSpent(t *testing.T) {
	nettest.NeedPrograms(t)
	p, err := NewPolicer(1, 1514, mtu, true)
	must(t, err)
	defer p.Close()
	if passes(t, p, 60) {
		t.Error("a packet passes")
	}
}

// frame returns a frame with this EtherType, this first byte of the IP header, and this next protocol
// (at its place in IPv4 or IPv6). Behind the IP header stands a TCP header that gives its length as 32
// bytes.
func frame(ethertype uint16, ip, protocol byte) []byte {
	f := make([]byte, 3000)
	binary.BigEndian.PutUint16(f[12:], ethertype)
	f[14] = ip
	if ethertype == unix.ETH_P_IPV6 {
		f[20], f[14+40+12] = protocol, 8<<4
	} else {
		f[23], f[14+int(ip&15)*4+12] = protocol, 8<<4
	}
	return f
}

// Many small segments that travel as one packet count with all their headers, as on the wire:
// otherwise a pod could gain by choosing small segments, or large headers.
func TestSegments(t *testing.T) {
	const size = 3000
	udp4, tcp4 := frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_UDP), frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_TCP)
	udp6, tcp6 := frame(unix.ETH_P_IPV6, 0x60, unix.IPPROTO_UDP), frame(unix.ETH_P_IPV6, 0x60, unix.IPPROTO_TCP)
	for _, c := range []struct {
		name          string
		frame         []byte
		segment, want int
	}{
		{"no GSO", udp4, 0, size},
		{"one segment", udp4, size + 1, size},
		{"one segment", udp4, size, size},
		{"one segment", udp4, size - 42, size},
		{"two segments", udp4, size - 43, size + 42},
		{"IPv4, UDP", udp4, 300, size + 9*42},
		{"IPv4, UDP", udp4, 1, size + (size-43)*42},
		{"IPv4 with options, UDP", frame(unix.ETH_P_IP, 0x4f, unix.IPPROTO_UDP), 100, size + 29*82},
		{"IPv4, TCP", tcp4, 1448, size + 2*66},
		{"IPv4 with options, TCP", frame(unix.ETH_P_IP, 0x4f, unix.IPPROTO_TCP), 100, size + 28*106},
		{"IPv6, UDP", udp6, 1000, size + 2*62},
		{"IPv6, TCP", tcp6, 1428, size + 2*86},
		{"IPv6 with an extension header", frame(unix.ETH_P_IPV6, 0x60, unix.IPPROTO_DSTOPTS), 1000, 4 * (mtu + 14)},
		{"IPv4 in IPv4", frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_IPIP), 1500, 3 * (mtu + 14)},
		{"neither IPv4 nor IPv6", frame(unix.ETH_P_8021Q, 0, 0), 1, (size + 1) * (mtu + 14)},
	} {
		p := policer(t, 1, uint64(c.want+14))
		ctx := struct {
			_    [atGSOSize]byte
			size uint32
			_    [12]byte // up to the end of struct __sk_buff
		}{size: uint32(c.segment)}
		said, err := p.program.Run(&ebpf.RunOptions{Data: c.frame, Context: ctx})
		must(t, err)
		if int32(said) != next || !passes(t, p, 14) || passes(t, p, 14) {
			t.Errorf("%s: a packet of %d bytes in segments of %d does not count as %d", c.name, size, c.segment, c.want)
		}
	}
}

// A full bucket lets the burst and the room of NewPolicer pass at once, and no more; an empty bucket
// fills again.
func TestRefill(t *testing.T) {
	const rate, burst = 1_000_000, 1514
	p := policer(t, rate, burst)
	begun, sent := time.Now(), 0
	for passes(t, p, burst) {
		sent += burst
	}
	if least, most := rate*late.Seconds(), burst+rate*(late+time.Since(begun)).Seconds(); float64(sent) < least || float64(sent) > most {
		t.Errorf("%d bytes pass at once: it can be %.0f to %.0f", sent, least, most)
	}
	for range 3 {
		nettest.Eventually(t, "the bucket has room again", func() bool { return passes(t, p, burst) })
	}
}

// A sender below the rate loses nothing: each packet finds the bucket full.
func TestBelowRate(t *testing.T) {
	p := policer(t, 100e9, 64<<10)
	for i := range 2000 {
		if !passes(t, p, 60) {
			t.Fatalf("packet %d is dropped", i)
		}
	}
}

// Processors that use one bucket at the same time may overdraw it by a packet each, and no more.
func TestBeside(t *testing.T) {
	const size, fit, senders = 100, 1000, 8
	p := policer(t, 1, size*fit)
	var passed atomic.Int32
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for range fit {
				if passes(t, p, size) {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n < fit || n >= fit+senders {
		t.Errorf("%d packets of %d pass", n, fit)
	}
}

// The kernel loads a policer for every limit that a configuration can ask for.
func TestExtremes(t *testing.T) {
	for _, c := range []struct{ rate, burst uint64 }{
		{1, 1514}, {1, math.MaxUint32}, {125, 1514}, {math.MaxInt32, 1514}, {math.MaxUint32, math.MaxUint32},
		{math.MaxInt64 / 8, 1514}, {math.MaxInt64, math.MaxUint32},
	} {
		if p := policer(t, c.rate, c.burst); !passes(t, p, 1514) || !passes(t, p, 14) && c.burst > 1528 {
			t.Errorf("a rate of %d and a burst of %d drop what fits", c.rate, c.burst)
		}
	}
	if _, err := NewPolicer(0, 1514, mtu, false); err == nil {
		t.Error("a rate of 0 is taken")
	}
	if d := depth(1, math.MaxUint64); d != 1<<62 {
		t.Errorf("the longest depth is %d", d)
	}
	if d, want := depth(1000, 2500), uint64(2500*time.Millisecond+late); d != want {
		t.Errorf("the depth is %d, not %d", d, want)
	}
}

// A policer that nobody has attached ends with Close.
func TestClose(t *testing.T) {
	nettest.NeedPrograms(t)
	p, err := NewPolicer(1000, 1514, mtu, false)
	must(t, err)
	info, err := p.program.Info()
	must(t, err)
	id, _ := info.ID()
	must(t, p.Close())
	nettest.Eventually(t, "the kernel has freed the program", func() bool {
		left, err := ebpf.NewProgramFromID(id)
		if err == nil {
			left.Close()
		}
		return errors.Is(err, fs.ErrNotExist)
	})
}
