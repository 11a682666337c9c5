package nettest

import "testing"

// Meanwhile calls f again and again, in a goroutine of its own, until the test ends. The cleanups
// that were registered before come after the last call.
func Meanwhile(t testing.TB, f func()) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				f()
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
}
