package ledger

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockScripts say what happens to the clock, the process and the machine while a name
// rests, and how much of the rest of 30 s is left after that. The rest begins at "free" or,
// if a script has none, at its beginning. "old" means that, until the next crash, the
// earlier version runs, whose records have the wall clock only. Each script is played once
// more with the file written anew after each event ("rewrite").
var clockScripts = []struct {
	script string
	left   time.Duration
}{
	{"pass 10s", 20 * time.Second},
	{"pass 31s", -time.Second},
	{"pass 10s, crash", 20 * time.Second},

	// The process lives on.
	{"step 1m", 30 * time.Second},
	{"step -1h, pass 10s", 20 * time.Second},
	{"step -1h, pass 31s", -time.Second},

	// The process dies: before the clock's step, after it, and between two steps.
	{"step 1m, crash", 30 * time.Second},
	{"crash, step 1m", 30 * time.Second},
	{"pass 10s, step -1h, pass 10s, crash, pass 5s", 5 * time.Second},
	{"pass 10s, crash, step -1h, pass 10s", 10 * time.Second},
	{"step 1h, pass 10s, crash, step -2h, pass 10s, crash, step 2h", 10 * time.Second},
	{"step 1h, free, step -1h, pass 10s, crash", 20 * time.Second},
	{"crash, step 1h, free, pass 10s, crash, step -1h, crash", 20 * time.Second},

	// The machine is rebooted: the wall clock tells how long the name rested.
	{"pass 10s, reboot", 20 * time.Second},
	{"pass 40s, reboot", -10 * time.Second},
	{"pass 10s, step 1m, reboot", -40 * time.Second},
	{"pass 10s, step -1h, reboot", 30 * time.Second},
	{"pass 10s, reboot, step 1h", 20 * time.Second},
	{"pass 10s, reboot, step -1h, pass 5s", 15 * time.Second},
	{"pass 10s, reboot, step 1h, crash", 20 * time.Second}, // the first opening in the boot settled how long the name had rested
	{"pass 10s, reboot, step -1h, crash", 20 * time.Second},
	{"pass 10s, step -1h, reboot, pass 5s, step -1h, crash, step 3h, crash", 25 * time.Second},
	{"pass 10s, reboot, pass 5s, step 1h, crash, pass 5s, step -1h, reboot", 10 * time.Second},
	{"step 1h, free, pass 10s, reboot", 20 * time.Second}, // the record has the wall clock's time as it was set then
	{"step -1h, free, pass 10s, reboot, pass 5s, crash", 15 * time.Second},
	{"step -1h, free, pass 10s, crash, reboot", 20 * time.Second},
	{"pass 10s, reboot, reboot, pass 5s", 15 * time.Second},

	// The earlier version wrote the rest.
	{"old, pass 10s, crash", 20 * time.Second},
	{"old, pass 10s, crash, step 1m", 20 * time.Second},
	{"old, pass 10s, step 1m, crash", -40 * time.Second},
	{"old, step -1h, crash, pass 10s", 20 * time.Second},
}

// Within a boot a name rests, and a quarantine lasts, for as long as it is meant to, whatever
// the wall clock is set to. Over a reboot they go by the wall clock, but never last longer
// than a whole rest from the reboot on.
func TestRestsWhileTheClockIsSet(t *testing.T) {
	all := clockScripts
	for _, s := range clockScripts {
		s.script = "rewrite, " + s.script
		all = append(all, s)
	}
	for _, s := range all {
		t.Run(s.script, func(t *testing.T) {
			l, c := playClock(t, s.script)
			now := l.opts.Clock.Now()
			if r := l.Resting(); len(r) != 1 || r[0].Until.Sub(now) != s.left {
				t.Errorf("it is %v; rests: %+v, want one for %v more", now, r, s.left)
			}
			if q := l.Quarantine(); q.Until.Sub(now) != s.left {
				t.Errorf("it is %v; quarantine: %+v, want one for %v more", now, q, s.left)
			}
			if snap := l.Snapshot(); !snap.Resting[0].Until.Equal(c.Wall().Add(s.left)) || !snap.Quarantine.Until.Equal(c.Wall().Add(s.left)) {
				t.Errorf("by the wall clock, it is %v: %+v, %+v", c.Wall(), snap.Resting[0], snap.Quarantine)
			}
			heir := newOwner(address("1"))
			if s.left > 0 {
				c.now = c.now.Add(s.left - 1)
				taken := &NameTakenError{}
				if err := l.Commit(t.Context(), Begin(heir)); !errors.As(err, &taken) || !taken.Until.Equal(c.Wall().Add(1)) {
					t.Errorf("given out before it has rested: %v", err)
				}
				c.now = c.now.Add(1)
			}
			if err := l.Commit(t.Context(), Begin(heir)); err != nil {
				t.Errorf("it has rested: %v", err)
			}
		})
	}
}

// playClock returns the ledger at the end of a script.
func playClock(t *testing.T, script string) (*Ledger, *clock) {
	script, rewrites := strings.CutPrefix(script, "rewrite, ")
	c := newClock()
	path := filepath.Join(t.TempDir(), "ledger.db")
	opts := testOptions(path, c)
	if strings.HasPrefix(script, "old") {
		opts.Boot = ""
	}
	l := open(t, opts)
	o := newOwner(address("1"))
	mustCommit(t, l, Begin(o))
	free := func() {
		now := l.opts.Clock.Now()
		mustCommit(t, l, Forget(o.ID, now), Quarantined(now, now.Add(rest)))
	}
	if !strings.Contains(script, "free") {
		free()
	}
	for _, event := range strings.Split(script, ", ") {
		what, arg, _ := strings.Cut(event, " ")
		d, _ := time.ParseDuration(arg)
		switch what {
		case "old":
		case "pass":
			c.now = c.now.Add(d)
		case "step":
			c.step += d
		case "free":
			free()
		case "crash", "reboot":
			must(t, l.Close())
			if what == "reboot" {
				c.reboot()
			}
			l = open(t, testOptions(path, c))
			must(t, l.SetEpoch(Epoch{Boot: c.boot}))
		default:
			t.Fatal(fmt.Sprint("no such event: ", event))
		}
		if rewrites {
			rewriteNow(t, l)
		}
	}
	return l, c
}
