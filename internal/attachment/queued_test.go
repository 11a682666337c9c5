package attachment

import (
	"testing"
	"time"

	"github.com/berth-net/berth/internal/deletions"
)

// The queue's files say when an attachment was deleted, and when it was cut off. They mark no
// attachment that they are not about, and a wrong clock never cuts a pod off too early.
func TestQueued(t *testing.T) {
	const (
		boot = "b2"
		sec  = int64(time.Second)
	)
	wall := time.Date(2026, 11, 23, 19, 0, 0, 0, time.UTC) // 1000 s after the boot
	at := func(s int) time.Time { return wall.Add(time.Duration(s-1000) * time.Second) }
	k := Key{Network: "net", ContainerID: "c", Ifname: "eth0"}
	of := func(boot string, created, started int) Record {
		return Record{Key: k, Epoch: boot + "/1/2/3", Created: at(created), Started: int64(started) * sec}
	}
	file := func(boot string, started, written int, cut bool) deletions.Entry {
		return deletions.Entry{Written: at(written), Record: deletions.Record{
			Network: k.Network, Container: k.ContainerID, Ifname: k.Ifname, Boot: boot, Started: int64(started) * sec, Cut: cut,
		}}
	}
	other := file(boot, 500, 501, true)
	other.Record.Ifname = "eth1"
	for name, c := range map[string]struct {
		rec    Record
		files  []deletions.Entry
		queued int // seconds after the boot; 0: not queued
		cut    int
	}{
		"none":                            {of(boot, 100, 100), nil, 0, 0},
		"cut off":                         {of(boot, 100, 100), []deletions.Entry{file(boot, 500, 501, true)}, 501, 501},
		"not cut off":                     {of(boot, 100, 100), []deletions.Entry{file(boot, 500, 501, false)}, 501, 0},
		"repeated":                        {of(boot, 100, 100), []deletions.Entry{file(boot, 600, 601, true), file(boot, 500, 501, true)}, 501, 501},
		"cut off by the second":           {of(boot, 100, 100), []deletions.Entry{file(boot, 500, 501, false), file(boot, 600, 601, true)}, 501, 601},
		"another interface":               {of(boot, 100, 100), []deletions.Entry{other}, 0, 0},
		"of a predecessor":                {of(boot, 700, 700), []deletions.Entry{file(boot, 500, 501, true)}, 0, 0},
		"before a repeated ADD":           {of(boot, 100, 700), []deletions.Entry{file(boot, 500, 501, true)}, 0, 0},
		"of an earlier boot":              {of(boot, 100, 100), []deletions.Entry{file("b1", 500, 50, true)}, 0, 0},
		"both of an earlier boot":         {of("b1", -500, 100), []deletions.Entry{file("b1", 500, -100, true)}, -100, -100},
		"the pod of an earlier boot":      {of("b1", -500, 100), []deletions.Entry{file(boot, 50, 51, true)}, 51, 51},
		"the clock was behind":            {of(boot, 100, 100), []deletions.Entry{file(boot, 500, -3000, true)}, 500, 500},
		"the clock was ahead":             {of(boot, 100, 100), []deletions.Entry{file(boot, 500, 3000, true)}, 1000, 1000},
		"an earlier boot's clock":         {of("b1", -500, 100), []deletions.Entry{file("b1", 500, -3000, true)}, -500, -500},
		"the clock was set back":          {of(boot, 2000, 100), []deletions.Entry{file(boot, 500, 2400, true)}, 2000, 2000},
		"a DEL in another time namespace": {of(boot, 100, 100), []deletions.Entry{file(boot, 5000, 501, true)}, 1000, 1000},
	} {
		want := Queued{}
		if c.queued != 0 {
			want.At = at(c.queued)
		}
		if c.cut != 0 {
			want.Cut = at(c.cut)
		}
		if got := c.rec.Queued(c.files, wall, boot, 1000*sec); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
