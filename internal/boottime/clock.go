package boottime

import "time"

// Clock tells times of day that advance as CLOCK_BOOTTIME does, also while the machine is
// suspended. It agrees with the wall clock at the moment when it is made; setting the wall
// clock afterwards does not move it. A process has one Clock, so that all of its times can
// be compared. The times have no monotonic reading, since that stands still during suspend.
type Clock struct {
	wall     func() time.Time
	boottime func() int64
	anchor   time.Time // what the wall clock said when this clock was made
	began    int64     // CLOCK_BOOTTIME in nanoseconds at that moment
}

// NewClock returns a clock that agrees with wall now, and advances as boottime does. If one of the
// two is nil, the machine's own clock takes its place.
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

// Moment returns the CLOCK_BOOTTIME at which this clock says t.
func (c *Clock) Moment(t time.Time) int64 { return c.began + int64(t.Sub(c.anchor)) }

// Stepped returns by how much the wall clock has been set forward since this clock was
// made, rounded to the millisecond, since the two clocks cannot be read at the same moment.
func (c *Clock) Stepped() time.Duration {
	return c.wall().Sub(c.Now()).Round(time.Millisecond)
}

// Wall turns the time t of this clock into a time of the wall clock as it is set now: for
// people, and for records that outlive the boot.
func (c *Clock) Wall(t time.Time) time.Time { return t.Add(c.Stepped()) }
