package bpf

import (
	"errors"
	"io/fs"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/berth-net/berth/internal/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var must = nettest.Must

// policer loads a policer.
func policer(t testing.TB, rate, burst uint64) *Policer {
	t.Helper()
	nettest.NeedPrograms(t)
	p, err := NewPolicer(rate, burst, false)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// passes runs a policer on a packet of so many bytes, as the kernel does.
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

// At a byte a second nothing comes back while the test runs: the burst passes to the byte, and
// nothing after it.
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
	p, err := NewPolicer(1, 1514, true)
	must(t, err)
	defer p.Close()
	if passes(t, p, 60) {
		t.Error("a packet passes")
	}
}

// Many small segments that travel as one packet count as what they are on the wire: a pod chooses
// their size.
func TestSegments(t *testing.T) {
	const size = 3000
	for _, c := range []struct{ segment, want int }{
		{0, size}, {size + 1, size}, {size, size}, {1500, size + 42}, {300, size + 9*42}, {1, size + (size-1)*42},
	} {
		p := policer(t, 1, uint64(c.want+14))
		ctx := struct {
			_    [atGSOSize]byte
			size uint32
			_    [12]byte // up to the end of struct __sk_buff
		}{size: uint32(c.segment)}
		said, err := p.program.Run(&ebpf.RunOptions{Data: make([]byte, size), Context: ctx})
		must(t, err)
		if int32(said) != next || !passes(t, p, 14) || passes(t, p, 14) {
			t.Errorf("a packet of %d bytes in segments of %d does not count as %d", size, c.segment, c.want)
		}
	}
}

// A full bucket lets the burst pass at once, with its room, and no more; an empty one fills again.
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

// Whoever sends below the rate loses nothing: each packet finds the bucket full.
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

// All limits that a configuration can ask for can be loaded.
func TestExtremes(t *testing.T) {
	for _, c := range []struct{ rate, burst uint64 }{
		{1, 1514}, {1, math.MaxUint32}, {125, 1514}, {math.MaxInt32, 1514}, {math.MaxUint32, math.MaxUint32},
		{math.MaxInt64 / 8, 1514}, {math.MaxInt64, math.MaxUint32},
	} {
		if p := policer(t, c.rate, c.burst); !passes(t, p, 1514) || !passes(t, p, 14) && c.burst > 1528 {
			t.Errorf("a rate of %d and a burst of %d drop what fits", c.rate, c.burst)
		}
	}
	if _, err := NewPolicer(0, 1514, false); err == nil {
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
	p, err := NewPolicer(1000, 1514, false)
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
