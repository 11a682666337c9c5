// Package boottime reads CLOCK_BOOTTIME, the clock by which requests are ordered, and makes
// of it times of day that nobody can set.
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

// At returns the CLOCK_BOOTTIME of t, provided that the machine is not suspended before t.
func At(t time.Time) int64 { return Now() + int64(time.Until(t)) }
