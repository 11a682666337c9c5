package nettest

import (
	"sync"
	"testing"
)

// Again calls f again and again, in a goroutine of its own, until somebody calls stop. stop waits for
// the last call of f.
func Again(f func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				f()
			}
		}
	}()
	return sync.OnceFunc(func() { close(done); <-ended })
}

// Meanwhile is Again until the test ends. Cleanups that the test registered before Meanwhile run after
// the last call of f.
func Meanwhile(t testing.TB, f func()) {
	t.Helper()
	t.Cleanup(Again(f))
}
