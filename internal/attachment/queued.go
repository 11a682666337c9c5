package attachment

import (
	"time"

	"github.com/berth-net/berth/internal/deletions"
)

// Queued is what the files of a queue say of the deletion of an attachment, for people.
type Queued struct {
	At  time.Time // when the first DEL was queued; zero: no deletion that waits is about the attachment
	Cut time.Time // when the plugin cut the pod off; zero: it did not
}

// Queued returns what the deletions that wait say of the attachment. wall is the present time,
// boottime the same in CLOCK_BOOTTIME (ns) of boot.
//
// A file's time comes from the wall clock, which somebody may have set since. So no time that
// Queued returns is in the future, before the DEL began, if it began in this boot, or before the
// attachment was made: if the clock is wrong, the pod counts as connected for too long, not for
// too short a time.
func (r Record) Queued(waiting []deletions.Entry, wall time.Time, boot string, boottime int64) (q Queued) {
	for _, e := range waiting {
		d := e.Record
		if d.Key() != r.Key || !r.BeganBeforeDeletion(d.Boot, d.Started, boot) {
			continue
		}
		at := e.Written
		if d.Boot == boot {
			at = later(at, wall.Add(time.Duration(d.Started-boottime)))
		}
		if at.After(wall) {
			at = wall
		}
		at = later(at, r.Created)
		if q.At.IsZero() || at.Before(q.At) {
			q.At = at
		}
		if d.Cut && (q.Cut.IsZero() || at.Before(q.Cut)) {
			q.Cut = at
		}
	}
	return q
}

func later(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}
