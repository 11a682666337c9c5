package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
)

// MaxDeadline is the longest that a request may take, from its own start. So a
// tombstone that a deletion leaves has to stand for MaxDeadline after the
// deletion's start: every request that is older has expired by then.
const MaxDeadline = 5 * time.Minute

// skew is how far a request's start may lie ahead of the daemon's own clock.
const skew = time.Millisecond

// When places a request in time. Both are CLOCK_BOOTTIME in nanoseconds.
type When struct {
	Started  int64 // when the client began
	Deadline int64 // when it gives up; at most MaxDeadline after Started
}

// Remaining is how long the client still waits.
func (w When) Remaining() time.Duration { return time.Duration(w.Deadline - boottime.Now()) }

// budget is how long the request may execute: less than its client waits, so that the
// answer reaches the client.
func (w When) budget() time.Duration {
	left := w.Remaining()
	return left - min(left/10, 100*time.Millisecond)
}

// parseWhen reads a request's headers. Without them it starts now and ends
// after limit.
func parseWhen(h http.Header, limit time.Duration) (When, *api.Error) {
	now := boottime.Now()
	started, err := headerTime(h, api.HeaderStarted, now)
	if err != nil {
		return When{}, err
	}
	if ahead := time.Duration(started - now); ahead > skew {
		return When{}, cni.Errorf(cni.CodeEnv, "invalid header "+api.HeaderStarted,
			"it is %v ahead of the agent's CLOCK_BOOTTIME: is the client in another time namespace?", ahead)
	}
	started = min(started, now)
	deadline, err := headerTime(h, api.HeaderDeadline, now+int64(limit))
	if err != nil {
		return When{}, err
	}
	w := When{started, min(deadline, started+int64(MaxDeadline))}
	if w.Deadline <= now {
		return When{}, expired(w)
	}
	return w, nil
}

// expired refuses a request whose client has given up: nobody would see its
// answer, and a later request may have overtaken it.
func expired(w When) *api.Error {
	return cni.Errorf(cni.CodeTryAgain, "the request has expired", "its deadline passed %v ago; nothing was done", -w.Remaining())
}

// headerTime returns the time in a header, or absent if the request lacks the header.
func headerTime(h http.Header, name string, absent int64) (int64, *api.Error) {
	values := h.Values(name)
	if len(values) == 0 {
		return absent, nil
	}
	ns, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || ns <= 0 || len(values) > 1 {
		return 0, cni.Errorf(cni.CodeEnv, "invalid header "+name,
			"it is %.64q; expected one CLOCK_BOOTTIME in nanoseconds", values)
	}
	return ns, nil
}
