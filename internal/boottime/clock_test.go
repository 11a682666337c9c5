package boottime_test

import (
	"testing"
	"time"

	"github.com/berth-net/berth/internal/boottime"
)

// A clock advances with CLOCK_BOOTTIME alone, whatever the wall clock is set to.
func TestClock(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	var step time.Duration
	var up int64 = 100
	c := boottime.NewClock(func() time.Time { return began.Add(time.Duration(up-100) + step) }, func() int64 { return up })
	for _, s := range []time.Duration{0, time.Hour, -time.Hour, 250 * time.Millisecond} {
		step = s
		up += int64(time.Minute)
		now := began.Add(time.Duration(up - 100))
		if !c.Now().Equal(now) || c.Boottime() != up || c.Moment(now) != up || !c.Time(up).Equal(now) {
			t.Errorf("set by %v: %v, want %v; moment %d, want %d", s, c.Now(), now, c.Moment(now), up)
		}
		if c.Stepped() != s || !c.Wall(now).Equal(now.Add(s)) {
			t.Errorf("set by %v, says %v; the wall clock's %v", s, c.Stepped(), c.Wall(now))
		}
	}
}

// The machine's own clock agrees with time.Now, as long as nobody sets the wall clock.
func TestClockOfTheMachine(t *testing.T) {
	c := boottime.NewClock(nil, nil)
	before := time.Now().Add(-time.Second)
	if now := c.Now(); now.Before(before) || now.After(time.Now().Add(time.Second)) || now != now.Round(0) {
		t.Errorf("%v, time.Now is %v", now, time.Now())
	}
}
