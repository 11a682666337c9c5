package patience

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 4: 8, 5: 10, 6: 10, 1000: 10} {
		if got := Backoff(time.Second, 10*time.Second, n); got != want*time.Second {
			t.Errorf("after failure %d it waits %v, not %v", n, got, want*time.Second)
		}
	}
	if got := Backoff(time.Minute, time.Second, 1); got != time.Second {
		t.Errorf("it waits %v", got)
	}
}
