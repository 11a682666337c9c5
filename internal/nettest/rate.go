package nettest

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/kernel/ns"
)

// Pour sends a TCP stream from one namespace to an address of another one, as fast as the stream goes,
// until the test ends. A nil namespace is the process's own.
func Pour(t testing.TB, from, to *ns.Netns, at netip.Addr) {
	t.Helper()
	Need(t)
	var source net.Conn
	sink := Accept(t, to, "tcp", netip.AddrPortFrom(at, 0).String(), func(conn net.Conn) {
		t.Cleanup(func() { conn.Close() })
		go io.Copy(io.Discard, conn)
	})
	Must(t, DoIn(from, func() (err error) {
		source, err = net.DialTimeout("tcp", sink.String(), Deadline)
		return err
	}))
	t.Cleanup(func() { source.Close() })
	go func() {
		data := make([]byte, 1<<18)
		for {
			if _, err := source.Write(data); err != nil {
				return
			}
		}
	}()
}

// Received returns how many bytes an interface of a namespace (nil: the process's own) has
// received, as the kernel counts them.
//
//	ip -s link show NAME
func Received(t testing.TB, at *ns.Netns, name string) (bytes uint64) {
	t.Helper()
	Must(t, DoIn(at, func() error {
		bytes = Link(t, name).Attrs().Statistics.RxBytes
		return nil
	}))
	return bytes
}

// WantRate fails the test unless what is received comes within 10 % of a rate, in bytes a
// second. A token bucket keeps to its rate and burst however busy the machine is, but a busy
// machine may not use the rate. So each of several measures must be below the upper bound, and one
// measure must reach the lower bound.
func WantRate(t testing.TB, rate, burst uint64, received func() uint64) {
	t.Helper()
	amount := max(rate/4, 20*burst) // the burst is at most 5 % of this amount
	first := received()
	Eventually(t, "the burst to be used up", func() bool { return received() > first+2*burst })
	end := time.Now().Add(Deadline)
	var got float64
	for time.Now().Before(end) {
		bytes, shortest := atMost(t, rate, burst, amount, received)
		if got = float64(bytes) / shortest; got >= 0.9*float64(rate) {
			return
		}
	}
	t.Fatalf("%.0f bytes came a second, of a rate of %d", got, rate)
}

// WantAtMost fails the test if what is received in about a second, or in a longer time if the machine
// is busy, is more than a burst, and 5 % more than a rate, in bytes a second, allow. Somebody has to
// send all the time.
func WantAtMost(t testing.TB, rate, burst uint64, received func() uint64) {
	t.Helper()
	atMost(t, rate, burst, rate, received)
}

// atMost waits until an amount of bytes has been received. atMost fails the test if the bytes came
// faster than a rate and a burst allow. Otherwise it returns how many bytes came, and within how many
// seconds at least.
func atMost(t testing.TB, rate, burst, amount uint64, received func() uint64) (bytes uint64, shortest float64) {
	t.Helper()
	before := time.Now()
	first := received()
	within := time.Now()
	var last time.Time
	Eventually(t, "enough bytes for a measure", func() bool {
		last = time.Now()
		bytes = received() - first
		return bytes >= amount
	})
	if longest := time.Since(before).Seconds(); float64(bytes) > 1.05*float64(rate)*longest+float64(burst) {
		t.Fatalf("%d bytes came within %.3f s: at a rate of %d and a burst of %d it can be %.0f",
			bytes, longest, rate, burst, 1.05*float64(rate)*longest+float64(burst))
	}
	return bytes, last.Sub(within).Seconds()
}
