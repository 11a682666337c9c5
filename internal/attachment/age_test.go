package attachment_test

import (
	"testing"
	"time"

	"github.com/berth-net/berth/internal/attachment"
)

// An attachment's age counts by CLOCK_BOOTTIME, from the ADD that made the attachment. That ADD is
// not always the last ADD that was answered with the attachment.
func TestYoungerThan(t *testing.T) {
	const now = int64(24 * time.Hour)
	ago := func(d time.Duration) int64 { return now - int64(d) }
	for name, test := range map[string]struct {
		record attachment.Record
		min    time.Duration
		want   bool
	}{
		"younger":                  {attachment.Record{Epoch: "b/1/2/3", Made: ago(time.Second)}, time.Minute, true},
		"as old as that":           {attachment.Record{Epoch: "b/1/2/3", Made: ago(time.Minute)}, time.Minute, false},
		"asked for again since":    {attachment.Record{Epoch: "b/1/2/3", Made: ago(time.Hour), Started: ago(1)}, time.Minute, false},
		"adopted":                  {attachment.Record{Epoch: "b/1/2/3", Made: ago(1), Adopted: true}, time.Minute, true},
		"of an older version":      {attachment.Record{Epoch: "b/1/2/3", Started: ago(time.Second)}, time.Minute, true},
		"old, of an older version": {attachment.Record{Epoch: "b/1/2/3", Started: ago(time.Hour)}, time.Minute, false},
		"of an earlier boot":       {attachment.Record{Epoch: "a/1/2/3", Made: ago(1)}, time.Minute, false},
		"no age is asked for":      {attachment.Record{Epoch: "b/1/2/3", Made: ago(-time.Second)}, 0, false},
		"by another wall clock":    {attachment.Record{Epoch: "b/1/2/3", Made: ago(time.Hour), Created: time.Now().Add(time.Hour)}, time.Minute, false},
	} {
		if got := test.record.YoungerThan(test.min, "b", now); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// An attachment is older than a queued deletion if its ADD began no later in the same boot,
// or in an earlier boot. A deletion that is done again in a later boot spares the
// attachments whose ADDs began in that boot.
func TestBeganBeforeDeletion(t *testing.T) {
	for _, c := range []struct {
		epoch   string
		started int64
		boot    string // of the deletion, begun at 5
		now     string
		want    bool
	}{
		{"one/0/1/2", 4, "one", "one", true},
		{"one/0/1/2", 5, "one", "one", true},
		{"one/0/1/2", 6, "one", "one", false},
		{"one/0/9/9", 6, "one", "one", false}, // the attachment is of another network namespace in the same boot
		{"one/0/1/2", 4, "one", "two", true},
		{"one/0/1/2", 6, "one", "two", false},
		{"one/0/1/2", 6, "two", "two", true},  // the attachment outlived a reboot
		{"two/0/1/2", 4, "one", "two", false}, // the deletion outlived a reboot
		{"one/0/1/2", 6, "two", "three", true},
	} {
		r := attachment.Record{Epoch: c.epoch, Started: c.started}
		if have := r.BeganBeforeDeletion(c.boot, 5, c.now); have != c.want {
			t.Errorf("%+v: %v", c, have)
		}
	}
}
