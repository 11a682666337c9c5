package boottime

import "time"

// Clock tells times of day that advance as CLOCK_BOOTTIME does, also while the
// machine is suspended. It agrees with the wall clock at the moment when it is
// made; whoever sets the wall clock afterwards does not move it. A process has
// one, so that all of its times can be compared. They have no monotonic reading,
// since that stands still during suspend.
type Clock struct {
	wall     func() time.Time
	boottime func() int64
	anchor   time.Time // what the wall clock said
	began    int64     // when it did, CLOCK_BOOTTIME in nanoseconds
}

// NewClock returns a clock that agrees with wall now, and advances as boottime
// does; nil: the machine's own.
func NewClock(wall func() time.Time, boottime func() int64) *Clock {
	if wall == nil {
		wall = time.Now
	}
	if boottime == nil {
		boottime = Now
	}
	return &Clock{wall, boottime, wall().Round(0).UTC(), boottime()}
}

// Now returns the time.
func (c *Clock) Now() time.Time { return c.Time(c.boottime()) }

// Boottime returns CLOCK_BOOTTIME in nanoseconds.
func (c *Clock) Boottime() int64 { return c.boottime() }

// Time returns what this clock says at a moment of CLOCK_BOOTTIME.
func (c *Clock) Time(moment int64) time.Time { return c.anchor.Add(time.Duration(moment - c.began)) }

// Moment returns when it is t on this clock, in CLOCK_BOOTTIME.
func (c *Clock) Moment(t time.Time) int64 { return c.began + int64(t.Sub(c.anchor)) }

// Stepped returns by how much the wall clock has been set forward since this
// clock was made, to the millisecond: the two cannot be read at once.
func (c *Clock) Stepped() time.Duration {
	return c.wall().Sub(c.Now()).Round(time.Millisecond)
}

// Wall returns what the wall clock says at t of this clock, as it is set now:
// for people, and for what outlives the boot.
func (c *Clock) Wall(t time.Time) time.Time { return t.Add(c.Stepped()) }
