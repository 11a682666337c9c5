package main

import (
	"slices"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for _, c := range []struct {
		of   []time.Duration
		p    float64
		want time.Duration
	}{
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1},
		{[]time.Duration{7}, 50, 7}, {[]time.Duration{7}, 99, 7},
		{[]time.Duration{3, 1, 2}, 50, 2}, {[]time.Duration{1, 2}, 99, 2},
	} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("percentile %v of %d values is %d, want %d", c.p, len(c.of), got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("percentile sorted what it was given")
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of four is %v", got)
	}
	if got := median([]time.Duration{9, 1, 5}); got != 5 {
		t.Errorf("median of three is %v", got)
	}
}

func TestRatio(t *testing.T) {
	s, base := series{20, 30, 80}, series{10, 20, 10}
	if m, text := s.ratio(base); m != 2 || text != "2.00x (1.50-8.00)" {
		t.Errorf("ratio is %v, %q", m, text)
	}
	if _, text := s.ratio(base[:2]); text != "" {
		t.Errorf("ratio of unequal series is %q", text)
	}
}

func TestNum(t *testing.T) {
	for d, want := range map[time.Duration]string{
		250 * time.Microsecond: "0.250", 1500 * time.Microsecond: "1.50", 24260 * time.Microsecond: "24.3", 1500 * time.Millisecond: "1500",
	} {
		if got := num(d); got != want {
			t.Errorf("num(%s) is %s, want %s", d, got, want)
		}
	}
}

func TestParseBenchmark(t *testing.T) {
	for line, want := range map[string]struct {
		name string
		ns   float64
		ok   bool
	}{
		"BenchmarkClaimFree/v4/16-2   \t 8000000\t        95.3 ns/op\n": {"ClaimFree/v4/16", 95.3, true},
		"BenchmarkSet-2 10 1500 ns/op 3 B/op 1 allocs/op":               {"Set", 1500, true},
		"ok  \tgithub.com/berth-net/berth/internal/ipam\t0.3s":          {},
		"BenchmarkLog-2": {},
	} {
		name, ns, ok := parseBenchmark(line)
		if ok != want.ok || ok && (name != want.name || ns != want.ns) {
			t.Errorf("parsing %q: %q, %v, %v", line, name, ns, ok)
		}
	}
}

// seconds returns each second's longest time, also after a second in which nothing began.
func TestSeconds(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	got := stalls{
		lock: []time.Duration{1 * ms, 3 * ms, 2 * ms, 2500 * ms, 5 * ms, 4 * ms},
		at:   []time.Duration{0, s / 2, s - 1, s, 7 * s / 2, 3*s + 600*ms},
	}.seconds()
	if want := (series{3 * ms, 2500 * ms, 5 * ms}); !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
