// Package oneproc gives a short program one processor from its start. The program imports it for
// that. So a goroutine that becomes ready wakes no other thread. And Go's monitor sleeps while the
// program waits; with a second processor it would wake up every 20 µs for 10 ms: in a burst, a fifth
// of the plugin's time.
//
// The package imports nothing but runtime, so it is initialized before every package but errors (the
// Go specification, "Program initialization"). If main did it, the runtime would give back what both
// processors have cached for allocations by then: 25 page faults more, and as many microseconds.
package oneproc

import "runtime"

func init() { runtime.GOMAXPROCS(1) }
