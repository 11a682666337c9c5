package server

import (
	"net/http"
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/boottime"
	"github.com/berth-net/berth/internal/cni"
)

// MaxDeadline is the longest that a request may take, from when its client ran. So a
// tombstone that a deletion leaves has to stand for MaxDeadline after the
// deletion's client ran: every request whose client ran before it has expired by then.
const MaxDeadline = 5 * time.Minute

// skew is how far a request's start may lie ahead of the daemon's own clock.
const skew = time.Millisecond

// When places a request in time, by CLOCK_BOOTTIME in nanoseconds.
type When struct {
	Started  int64 // when the client's process began
	Running  int64 // when that process began to run the client's program; 0: when the process began
	Deadline int64 // when the client gives up; at most MaxDeadline after Running
}

// Latest is when the client may have been asked for its verb at the latest. Its process
// may have begun long before that, if somebody keeps processes ready.
func (w When) Latest() int64 { return max(w.Started, w.Running) }

// Remaining is how long the client still waits.
func (w When) Remaining() time.Duration { return time.Duration(w.Deadline - boottime.Now()) }

// budget is how long the request may execute: less than its client waits, so that the
// answer reaches the client.
func (w When) budget() time.Duration {
	left := w.Remaining()
	return left - min(left/10, 100*time.Millisecond)
}

// parseWhen reads a request's headers. A request without them starts now and ends after limit.
func parseWhen(h http.Header, limit time.Duration) (When, *api.Error) {
	now := boottime.Now()
	started, err := headerPast(h, api.HeaderStarted, now, now)
	if err != nil {
		return When{}, err
	}
	running, err := headerPast(h, api.HeaderRunning, started, now)
	if err != nil {
		return When{}, err
	}
	deadline, err := headerTime(h, api.HeaderDeadline, now+int64(limit))
	if err != nil {
		return When{}, err
	}
	w := When{Started: started, Running: max(started, running)}
	w.Deadline = min(deadline, w.Running+int64(MaxDeadline))
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

// headerPast reads a header whose time must be in the past, or returns absent if the request lacks the
// header.
func headerPast(h http.Header, name string, absent, now int64) (int64, *api.Error) {
	at, err := headerTime(h, name, absent)
	if err != nil {
		return 0, err
	}
	if ahead := time.Duration(at - now); ahead > skew {
		return 0, cni.Errorf(cni.CodeEnv, "invalid header "+name,
			"it is %v ahead of the agent's CLOCK_BOOTTIME: is the client in another time namespace?", ahead)
	}
	return min(at, now), nil
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
