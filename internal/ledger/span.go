package ledger

import (
	"hash/crc32"
	"time"

	"github.com/berth-net/berth/internal/boottime"
)

// span is a rest or a quarantine as it stands in the file. Within the boot in
// which it was begun CLOCK_BOOTTIME tells where in it one is. In any other boot,
// and of a record from before there were boots in it, only the wall clock can.
type span struct {
	Freed int64 // Unix nanoseconds, by the wall clock as it was set at the write
	Until int64
	Boot  uint32 // mark of Options.Boot; 0: not known
	At    int64  // CLOCK_BOOTTIME of Freed in that boot, nanoseconds
}

// spans makes spans of times of Options.Clock, for one transaction.
type spans struct {
	clock   *boottime.Clock
	boot    uint32
	stepped time.Duration
}

func (l *Ledger) spans() spans {
	return spans{l.opts.Clock, mark(l.opts.Boot), l.opts.Clock.Stepped()}
}

func (s spans) of(freed, until time.Time) span {
	out := span{Freed: freed.Add(s.stepped).UnixNano(), Until: until.Add(s.stepped).UnixNano()}
	if s.boot != 0 {
		out.Boot, out.At = s.boot, s.clock.Moment(freed)
	}
	return out
}

// mark returns what a boot is known by in records, of which there are many: no two
// boots of a machine's life have the same one, but by a chance of one to 2^32.
func mark(boot string) uint32 {
	return crc32.Checksum([]byte(boot), castagnoli) // of "": 0
}

// opening is when a boot first opened the ledger, by both clocks: how long what
// earlier boots freed had rested by then is settled once. Otherwise whoever sets
// the wall clock, as is usual soon after a boot, would change it with the next
// opening.
type opening struct {
	Boot string `json:"boot"`
	At   int64  `json:"at"`   // CLOCK_BOOTTIME, nanoseconds
	Wall int64  `json:"wall"` // Unix nanoseconds
}

// first returns o, if it is of the boot that the clock is in, or an opening now.
func (o opening) first(clock *boottime.Clock, boot string) opening {
	if boot != "" && o.Boot == boot {
		return o
	}
	now := clock.Now()
	return opening{boot, clock.Moment(now), clock.Wall(now).UnixNano()}
}

// reading makes two times of a span.
type reading func(span) (freed, until time.Time)

// asWritten reads a span for people: by the wall clock.
func asWritten(s span) (freed, until time.Time) { return wallTime(s.Freed), wallTime(s.Until) }

// by returns how spans read by a clock in the boot of an opening. What begins in
// the future, since the wall clock was set back, begins with the opening. The
// record stays as it is.
func (o opening) by(clock *boottime.Clock) reading {
	boot := mark(o.Boot)
	return func(s span) (freed, until time.Time) {
		at := min(o.At, o.At+s.Freed-o.Wall)
		if s.Boot != 0 && s.Boot == boot {
			at = min(s.At, clock.Boottime())
		}
		freed = plain(clock.Time(at))
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
