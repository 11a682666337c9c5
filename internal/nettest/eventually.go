package nettest

import (
	"testing"
	"time"
)

// Deadline is how long Eventually waits: generous, because only a failing test
// ever waits so long, and slow machines run tests too.
const Deadline = 60 * time.Second

// Eventually waits until cond is true, asking at first often and then every 50
// milliseconds, and ends the test if it does not become so. what completes
// "waiting for ...".
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	end := time.Now().Add(Deadline)
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain for %s", Deadline, what)
		}
		time.Sleep(pause)
	}
}
