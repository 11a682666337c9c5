package ledger

import (
	"time"

	"github.com/berth-net/berth/internal/boottime"
)

// span is a rest or a quarantine as it stands in the file. Within the boot in
// which it was begun CLOCK_BOOTTIME tells where in it one is. In any other boot,
// and of a record from before there were boots in it, only the wall clock can.
type span struct {
	Freed int64 // Unix nanoseconds, by the wall clock as it was set at the write
	Until int64
	Boot  string // Options.Boot; "": not known
	At    int64  // CLOCK_BOOTTIME of Freed in that boot, nanoseconds
}

// spans makes spans of times of Options.Clock, for one transaction.
type spans struct {
	clock   *boottime.Clock
	boot    string
	stepped time.Duration
}

func (l *Ledger) spans() spans {
	return spans{l.opts.Clock, l.opts.Boot, l.opts.Clock.Stepped()}
}

func (s spans) of(freed, until time.Time) span {
	out := span{Freed: freed.Add(s.stepped).UnixNano(), Until: until.Add(s.stepped).UnixNano()}
	if s.boot != "" {
		out.Boot, out.At = s.boot, s.clock.Moment(freed)
	}
	return out
}

// reading makes two times of a span.
type reading func(span) (freed, until time.Time)

// asWritten reads a span for people: by the wall clock.
func asWritten(s span) (freed, until time.Time) { return wallTime(s.Freed), wallTime(s.Until) }

// readBy returns how spans read in a boot by a clock. What begins in the future,
// since the wall clock was set back, begins now. The record stays as it is.
func readBy(clock *boottime.Clock, boot string) reading {
	now, stepped := clock.Now(), clock.Stepped()
	return func(s span) (freed, until time.Time) {
		freed = wallTime(s.Freed).Add(-stepped)
		if s.Boot != "" && s.Boot == boot {
			freed = plain(clock.Time(s.At))
		}
		if freed.After(now) {
			freed = plain(now)
		}
		return freed, freed.Add(time.Duration(s.Until - s.Freed))
	}
}

func wallTime(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// set moves a snapshot's rests and its quarantine from Options.Clock to the wall
// clock, which has been set forward from it by d.
func (s *Snapshot) set(d time.Duration) {
	for i := range s.Resting {
		r := &s.Resting[i]
		r.Freed, r.Until = r.Freed.Add(d), r.Until.Add(d)
	}
	if q := &s.Quarantine; *q != (Quarantine{}) {
		q.Since, q.Until = q.Since.Add(d), q.Until.Add(d)
	}
}
