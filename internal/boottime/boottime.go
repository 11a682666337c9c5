// Package boottime reads the clock that places requests in time, and makes times
// of day of it that nobody can set.
package boottime

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns CLOCK_BOOTTIME in nanoseconds: it counts from the boot, also
// while the machine is suspended, never goes back, and is the same for every
// process of a boot that shares its time namespace.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("boottime: %v", err)) // every kernel since 2.6.39 has it
	}
	return t.Nano()
}

// At returns the CLOCK_BOOTTIME of a moment, taken that the machine is not
// suspended until then.
func At(t time.Time) int64 { return Now() + int64(time.Until(t)) }
