package daemon

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// There is a lull while there are hardly any transactions.
func TestLull(t *testing.T) {
	var l lull
	for i, step := range []struct {
		more uint64
		want bool
	}{
		{0, true}, {lullMost, true}, {lullMost + 1, false}, {1000, false}, {lullMost, true}, {0, true}, {1000, false},
	} {
		if got := l.calm(l.last + step.more); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

// Garbage is worth giving back. Once it is given back, nothing more is worth giving back.
func TestWorth(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // otherwise the collector may come first
	debug.FreeOSMemory()
	for range 32 {
		garbage = make([]byte, leastBack)
	}
	if u := heapUsage(); u.back < 31*leastBack || !u.worth() {
		t.Errorf("with garbage of %d bytes: %+v", 31*leastBack, u)
	}
	garbage = nil
	debug.FreeOSMemory()
	if u := heapUsage(); u.back > 8*leastBack {
		t.Errorf("after it was given back: %+v", u)
	}
	for _, test := range []struct {
		usage
		want bool
	}{
		{usage{live: 0, back: leastBack - 1}, false},
		{usage{live: 0, back: leastBack}, true},
		{usage{live: 2 * backShare * leastBack, back: 2*leastBack - 1}, false},
		{usage{live: 2 * backShare * leastBack, back: 2 * leastBack}, true},
	} {
		if got := test.worth(); got != test.want {
			t.Errorf("%+v: %v", test.usage, got)
		}
	}
	runtime.KeepAlive(garbage)
}

var garbage []byte
