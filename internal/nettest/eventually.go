package nettest

import (
	"runtime"
	"testing"
	"time"
)

// Deadline is how long Eventually waits. It is generous, because slow machines run tests
// too, and only a failing test ever waits so long.
const Deadline = 60 * time.Second

// Eventually waits until cond is true. It calls cond often at first and then every 50
// milliseconds. If cond stays false, Eventually ends the test. The text `what` completes "waiting
// for ...".
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

// Goroutines counts the goroutines. ended waits until there are no more of them than that: then those that a test has
// begun since touch nothing any more, such as a folder that the test's end removes.
func Goroutines(t testing.TB) (ended func()) {
	before := runtime.NumGoroutine()
	return func() {
		t.Helper()
		Eventually(t, "the goroutines that the test has begun to end", func() bool { return runtime.NumGoroutine() <= before })
	}
}
