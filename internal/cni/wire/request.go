package wire

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/root"
)

// Request is one request to an agent.
type Request struct {
	Method   string // GET, POST, DELETE
	Target   string // path and query, escaped
	Body     []byte // JSON; nil for none
	Started  int64  // when the client's process began, CLOCK_BOOTTIME in nanoseconds
	Running  int64  // when the client's program ran, likewise; sent only if it is later than Started
	Deadline int64  // when the client gives up, likewise
	Await    int64  // until when Do waits for an agent that is away, likewise; 0: Do does not wait
	Trace    string // traceparent (W3C Trace Context); dropped if malformed
}

// Do sends a request to the agent of a root directory, and returns its answer.
// Any error means that it is not known whether the request was executed.
func Do(dir root.Dir, r Request) (Response, error) {
	c, err := await(dir, r, time.Sleep)
	if err != nil {
		return Response{}, err
	}
	defer c.close()
	_, sendErr := c.Write(r.append(nil))
	if sendErr != nil && !errors.Is(sendErr, unix.EPIPE) && !errors.Is(sendErr, unix.ECONNRESET) {
		return Response{}, fmt.Errorf("sending the request: %w", sendErr)
	}
	// An agent that refuses a request may answer and close before it has read the whole request: so
	// there may be an answer even if sending failed.
	resp, err := ReadResponse(c)
	if err != nil && sendErr != nil {
		err = sendErr
	}
	if err != nil {
		return Response{}, fmt.Errorf("reading the answer: %w", err)
	}
	return resp, nil
}

// append appends the request as it goes over the wire (RFC 9112).
func (r Request) append(b []byte) []byte {
	b = append(b, r.Method+" "+r.Target+" HTTP/1.1\r\nHost: berthd\r\nConnection: close\r\n"...)
	b = appendHeader(b, api.HeaderStarted, strconv.FormatInt(r.Started, 10))
	if r.Running > r.Started {
		b = appendHeader(b, api.HeaderRunning, strconv.FormatInt(r.Running, 10))
	}
	b = appendHeader(b, api.HeaderDeadline, strconv.FormatInt(r.Deadline, 10))
	if isTrace(r.Trace) {
		b = appendHeader(b, "Traceparent", r.Trace)
	}
	if r.Body != nil {
		b = appendHeader(b, "Content-Type", "application/json")
		b = appendHeader(b, "Content-Length", strconv.Itoa(len(r.Body)))
	}
	b = append(b, "\r\n"...)
	return append(b, r.Body...)
}

func appendHeader(b []byte, name, value string) []byte {
	return append(b, name+": "+value+"\r\n"...)
}

// isTrace reports whether s can be a traceparent, so that nothing in it can end the header
// that it goes into.
func isTrace(s string) bool {
	if len(s) < 55 || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && c != '-' {
			return false
		}
	}
	return true
}
