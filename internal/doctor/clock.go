package doctor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/boottime"
)

// lookClock asks the kernel whether somebody keeps the wall clock right. lookClock also compares how
// far the wall clock and CLOCK_BOOTTIME, which nobody sets, have gone since the agent began.
func lookClock(_ context.Context, n *Node) Finding {
	var t unix.Timex // with modes 0 it only reads
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return unknown(os.NewSyscallError("adjtimex", err))
	}
	var stepped time.Duration
	if a := n.agent(); a.pid != 0 && !a.status.Started.IsZero() {
		began, err := startOf(a)
		if err != nil {
			return unknown(err)
		}
		// now is the time at which the agent's process began, by today's wall clock. Started is that
		// time by the wall clock of that time.
		now := time.Now().Add(time.Duration(began - boottime.Now()))
		stepped = now.Sub(a.status.Started)
	}
	return judgeClock(time.Now(), state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0, stepped)
}

const (
	// starting is how long an agent may take from its process's beginning to the time that it
	// tells as its start.
	starting = 30 * time.Second
	// ticks is how many clock ticks a second has in /proc: USER_HZ, on every architecture that Go has.
	ticks = 100
)

// startOf returns the CLOCK_BOOTTIME at which the agent's process began.
func startOf(a agent) (int64, error) {
	raw, err := os.ReadFile(a.proc("stat"))
	if err != nil {
		return 0, err
	}
	// The start is field 22. The second field, the program's name, is in parentheses, and may have blanks.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("%s has %d fields", a.proc("stat"), len(fields))
	}
	began, err := strconv.ParseInt(string(fields[19]), 10, 64)
	return began * int64(time.Second) / ticks, err
}

// judgeClock judges the wall clock. adrift says that nothing keeps the clock right. stepped is by how much
// somebody has set it forward since the agent began.
func judgeClock(now time.Time, adrift bool, stepped time.Duration) Finding {
	const keep = "timedatectl set-ntp true, or run chrony"
	switch {
	case now.Year() < 2024:
		return Finding{Bad, "the wall clock says " + now.UTC().Format(time.DateTime), "set it (date -s), and keep it right: " + keep}
	case stepped > starting || stepped < -starting:
		return Finding{Warn, fmt.Sprintf("the wall clock was set by %s since the agent began", stepped.Round(time.Second)), "keep it right: " + keep}
	case adrift:
		return Finding{Warn, "nobody keeps the wall clock right (adjtimex: unsynchronised)", keep}
	}
	return ok("the wall clock is synchronised, and was not set since the agent began")
}
