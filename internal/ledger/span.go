package ledger

import (
	"hash/crc32"
	"time"

	"github.com/berth-net/berth/internal/boottime"
)

// span is a rest or a quarantine as the file has it. Within the boot in which it began,
// CLOCK_BOOTTIME tells how much of it has passed. In any other boot, and for a record of an
// earlier version, which has no boot, only the wall clock can tell.
type span struct {
	Freed int64  // Unix nanoseconds, by the wall clock as it was set when the record was written
	Until int64  // likewise
	Boot  uint32 // the mark of Options.Boot; 0: not known
	At    int64  // Freed by CLOCK_BOOTTIME of that boot, in nanoseconds
}

func (s span) length() time.Duration { return time.Duration(s.Until - s.Freed) }

// spans turns times of Options.Clock into spans, for one transaction.
type spans struct {
	clock   *boottime.Clock
	boot    uint32
	stepped time.Duration
}

func spansOf(o Options) spans { return spans{o.Clock, mark(o.Boot), o.Clock.Stepped()} }

func (s spans) of(freed, until time.Time) span {
	out := span{Freed: freed.Add(s.stepped).UnixNano(), Until: until.Add(s.stepped).UnixNano()}
	if s.boot != 0 {
		out.Boot, out.At = s.boot, s.clock.Moment(freed)
	}
	return out
}

// kept is a quarantine with the span that the file has of it.
type kept struct {
	Quarantine
	span span
}

func (s spans) keep(q Quarantine) kept { return kept{q, s.of(q.Since, q.Until)} }

// mark returns the number that stands for a boot in records. The number is short because there are
// many records; two boots of a machine have the same mark with a chance of one in 2^32.
func mark(boot string) uint32 {
	return crc32.Checksum([]byte(boot), castagnoli) // the mark of "" is 0
}

// opening is when a boot first opened the ledger, by both clocks. The opening settles, once for the
// whole boot, how long names had rested that earlier boots freed. Otherwise whoever sets the wall
// clock, as is usual soon after a boot, would change these rests when the ledger is opened again.
type opening struct {
	Boot string `json:"boot"`
	At   int64  `json:"at"`   // CLOCK_BOOTTIME, nanoseconds
	Wall int64  `json:"wall"` // Unix nanoseconds
}

// first returns o if o is of the boot that the clock is in; otherwise it returns an opening of now.
func (o opening) first(clock *boottime.Clock, boot string) opening {
	if boot != "" && o.Boot == boot {
		return o
	}
	now := clock.Now()
	return opening{boot, clock.Moment(now), clock.Wall(now).UnixNano()}
}

// reading turns a span into two times.
type reading func(span) (freed, until time.Time)

// asWritten reads a span for people, by the wall clock.
func asWritten(s span) (freed, until time.Time) { return wallTime(s.Freed), wallTime(s.Until) }

// by returns a reading that turns spans into times of a clock in the opening's boot. A span
// that would begin in the future, because the wall clock was set back, begins with the
// opening. Its record does not change.
func (o opening) by(clock *boottime.Clock) reading {
	boot := mark(o.Boot)
	return func(s span) (freed, until time.Time) {
		at := min(o.At, o.At+s.Freed-o.Wall)
		if s.Boot != 0 && s.Boot == boot {
			at = min(s.At, clock.Boottime())
		}
		freed = plain(clock.Time(at))
		return freed, freed.Add(s.length())
	}
}

func wallTime(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// set converts the times of a snapshot's rests and quarantine from Options.Clock to the wall
// clock, which is ahead of it by d.
func (s *Snapshot) set(d time.Duration) {
	for i := range s.Resting {
		r := &s.Resting[i]
		r.Freed, r.Until = r.Freed.Add(d), r.Until.Add(d)
	}
	if q := &s.Quarantine; *q != (Quarantine{}) {
		q.Since, q.Until = q.Since.Add(d), q.Until.Add(d)
	}
}
