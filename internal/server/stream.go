package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/events"
)

const (
	maxReaders = 64               // of events at once
	keepAlive  = 30 * time.Second // between lines, so that dead readers are found
)

// streamEvents writes a JSON object a line, for as long as the reader reads.
// An empty line says that the stream is alive; one of type end is the last.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case s.readers <- struct{}{}:
		defer func() { <-s.readers }()
	default:
		s.write(w, toAnswer(cni.Errorf(cni.CodeTryAgain, "too many readers of events", "%d read already", maxReaders)))
		return
	}
	stream, bad := s.follow(r)
	if bad != nil {
		s.write(w, toAnswer(bad))
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-s.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/x-ndjson")
	// At first there is only the header: the reader knows that it is heard.
	for line, last := []byte{}, false; ; line, last = nextLine(ctx, stream) {
		_ = conn.SetWriteDeadline(time.Now().Add(grace))
		if _, err := w.Write(line); err != nil {
			return
		}
		if err := conn.Flush(); err != nil || last {
			return
		}
	}
}

// follow returns the stream that a request asks for.
func (s *Server) follow(r *http.Request) (*events.Stream, *api.Error) {
	q, bad := parseQuery(r, "since")
	if bad != nil {
		return nil, bad
	}
	since, found := q["since"]
	if !found {
		return s.events.Follow(), nil
	}
	seq, err := strconv.ParseUint(since, 10, 64)
	if err != nil {
		return nil, badParameter("since", since, "the number of an event")
	}
	return s.events.FollowFrom(seq), nil
}

// nextLine waits for what to write next: an event, an empty line if there has
// been none for a while, or the last line. A reader that is gone gets nothing.
func nextLine(ctx context.Context, stream *events.Stream) (line []byte, last bool) {
	wait, cancel := context.WithTimeout(ctx, keepAlive)
	defer cancel()
	e, err := stream.Next(wait)
	switch {
	case err == nil:
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return []byte("\n"), false
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errStopping):
		return nil, true
	default: // the hub closed, the reader was too slow, or the agent stops
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		last = true
		e = api.Event{Seq: stream.Last(), Time: time.Now(), Type: api.EventEnd, Message: err.Error()}
	}
	line, err = encode(e)
	return line, last || err != nil
}
