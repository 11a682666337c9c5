package bpf

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"slices"
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

// extended returns the first bytes of a frame of IPv6 with extension headers of these protocols, each of so
// many bytes, and behind them a protocol's header, which is TCP's with a length of 32 bytes.
func extended(bytes int, protocol byte, extensions ...byte) []byte {
	f, at := frame(unix.ETH_P_IPV6, 0x60, protocol), 14+40
	f[at+12] = 0
	following := &f[20]
	for _, e := range extensions {
		*following, following, f[at+1] = e, &f[at], byte(bytes/8-1)
		at += bytes
	}
	*following, f[at+12] = protocol, 8<<4
	return f
}

// verdict runs a policer on a frame whose segments have so many bytes, as the kernel does.
func verdict(t testing.TB, p *Policer, frame []byte, segments, size int) int {
	t.Helper()
	ctx := struct {
		_        [atGSOSegs]byte
		segments uint32
		_        [atGSOSize - atGSOSegs - 4]byte
		size     uint32
		_        [12]byte // up to the end of struct __sk_buff
	}{segments: uint32(segments), size: uint32(size)}
	said, err := p.program.Run(&ebpf.RunOptions{Data: frame, Context: ctx})
	must(t, err)
	return int(int32(said))
}

// Many small segments that travel as one packet count with all their headers, as on the wire:
// otherwise a pod could gain by choosing small segments, or large headers.
func TestSegments(t *testing.T) {
	const size = 3000
	const hop, routing, fragment, options = unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS
	udp4, tcp4 := frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_UDP), frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_TCP)
	udp6, tcp6 := frame(unix.ETH_P_IPV6, 0x60, unix.IPPROTO_UDP), frame(unix.ETH_P_IPV6, 0x60, unix.IPPROTO_TCP)
	fragmented := extended(8, unix.IPPROTO_UDP, fragment)
	fragmented[14+40+1] = 255 // reserved: not a length
	long := extended(1600, unix.IPPROTO_UDP, options)
	long[14+40], long[14+40+1600+1] = options, 255 // another one, of 2048 bytes
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
		{"IPv6 with options, UDP", extended(2048, unix.IPPROTO_UDP, options), 100, size + 8*(62+2048)},
		{"IPv6 with options, TCP", extended(1600, unix.IPPROTO_TCP, options), 1000, size + 86 + 1600},
		{"IPv6 with all extension headers, UDP", extended(8, unix.IPPROTO_UDP, hop, options, routing, fragment, options), 1000, size + 2*(62+40)},
		{"IPv6 with all extension headers, TCP", extended(16, unix.IPPROTO_TCP, hop, options, routing, options), 1000, size + 2*(86+64)},
		{"IPv6 with a fragment header", fragmented, 1000, size + 2*(62+8)},
		{"IPv6 with 8 extension headers", extended(256, unix.IPPROTO_UDP, slices.Repeat([]byte{options}, 8)...), 10, size + 88*(62+2048)},
		{"IPv6 with options longer than the packet", long, 1000, 4 * (mtu + 14)},
		{"IPv6 in IPv6 with options", extended(8, unix.IPPROTO_IPV6, options), 1000, 4 * (mtu + 14)},
		{"IPv4 in IPv4", frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_IPIP), 1500, 3 * (mtu + 14)},
		{"neither IPv4 nor IPv6", frame(unix.ETH_P_8021Q, 0, 0), 1, (size + 1) * (mtu + 14)},
	} {
		p := policer(t, 1, uint64(c.want+14))
		if verdict(t, p, c.frame, 1000, c.segment) != next || !passes(t, p, 14) || passes(t, p, 14) {
			t.Errorf("%s: a packet of %d bytes in segments of %d does not count as %d", c.name, size, c.segment, c.want)
		}
	}
}

// The headers of a segment that do not end within 8 extension headers cannot be counted.
func TestEndlessHeaders(t *testing.T) {
	endless := extended(8, unix.IPPROTO_UDP, slices.Repeat([]byte{unix.IPPROTO_DSTOPTS}, 9)...)
	p := policer(t, math.MaxInt64, math.MaxUint32)
	if said := verdict(t, p, endless, 0, 1000); said != shot {
		t.Errorf("a packet of segments with 9 extension headers: %d", said)
	}
	if said := verdict(t, p, endless, 0, 0); said != next {
		t.Errorf("a packet with 9 extension headers: %d", said)
	}
}

// Each of SCTP's segments, which differ in length, counts with its headers. Such segments of other
// protocols count as full frames, and as no less than the packet.
func TestByFrags(t *testing.T) {
	sctp4, sctp6 := frame(unix.ETH_P_IP, 0x46, unix.IPPROTO_SCTP), extended(16, unix.IPPROTO_SCTP, unix.IPPROTO_DSTOPTS)
	other := frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_GRE)
	for _, c := range []struct {
		frame          []byte
		segments, want int
	}{
		{sctp4, 100, 3000 + 99*(14+24+12)}, {sctp4, 1, 3000}, {sctp4, 0, 3000}, {sctp6, 10, 3000 + 9*(14+40+16+12)},
		{other, 100, 100 * (mtu + 14)}, {other, 2, 2 * (mtu + 14)}, {other, 1, 3000}, {other, 0, 3000},
	} {
		p := policer(t, 1, uint64(c.want+14))
		if verdict(t, p, c.frame, c.segments, byFrags) != next || !passes(t, p, 14) || passes(t, p, 14) {
			t.Errorf("a packet of 3000 bytes with %d segments does not count as %d", c.segments, c.want)
		}
	}
}

// A packet costs no less because its cost, or what is then paid for, is more than 64 bits.
func TestCostDoesNotOverflow(t *testing.T) {
	nettest.NeedPrograms(t)
	const segments = math.MaxUint16                                    // the most that a packet has
	const wraps = math.MaxUint64/uint64(time.Second)/segments + 1 - 14 // the least MTU whose frames cost more, at a byte a second
	for _, mtu := range []uint64{wraps / 2, wraps - 1, wraps, wraps + 1, 2 * wraps, math.MaxInt32 - 14} {
		for _, rate := range []uint64{1, 1000} {
			p, err := NewPolicer(rate, math.MaxUint32, int(mtu), false)
			must(t, err)
			defer p.Close()
			if said := verdict(t, p, frame(unix.ETH_P_IP, 0x45, unix.IPPROTO_GRE), segments, byFrags); said != shot {
				t.Errorf("at %d bytes a second %d frames with an MTU of %d pass", rate, segments, mtu)
			}
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
