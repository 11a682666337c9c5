package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/berth-net/berth/internal/cni"
)

const (
	maxReaders = 64               // of streams at once
	keepAlive  = 30 * time.Second // between lines, so that a write to a dead reader fails
)

// Source is what a stream's lines come from. If it is an io.Closer, the server closes it after
// the last line.
type Source interface {
	// Next waits for the next line's value. It returns ctx's error if there is
	// none until ctx ends; any other error ends the stream.
	Next(ctx context.Context) (any, error)
	// Last is the value of the last line, which says why the stream ends.
	Last(why error) any
}

// stream writes a JSON value a line, for as long as the reader reads. An empty
// line says that the stream is alive.
func (s *Server) stream(rt *Route, w http.ResponseWriter, r *http.Request) {
	select {
	case s.readers <- struct{}{}:
		defer func() { <-s.readers }()
	default:
		s.write(w, s.toAnswer(cni.Errorf(cni.CodeTryAgain, "too many readers of "+rt.Verb, "%d are reading already", maxReaders)))
		return
	}
	source, err := s.source(rt, w, r)
	if err != nil {
		s.write(w, s.toAnswer(err))
		return
	}
	if c, ok := source.(io.Closer); ok {
		defer c.Close()
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
	// The first round writes only the header: it tells the reader that the stream has
	// begun.
	for line, last := []byte{}, false; ; line, last = nextLine(ctx, source) {
		_ = conn.SetWriteDeadline(time.Now().Add(grace))
		if _, err := w.Write(line); err != nil {
			return
		}
		if err := conn.Flush(); err != nil || last {
			return
		}
	}
}

// source returns the source that a request asks for.
func (s *Server) source(rt *Route, w http.ResponseWriter, r *http.Request) (Source, error) {
	query, err := parseQuery(r, rt.Parameters...)
	if err != nil {
		return nil, err
	}
	return rt.Stream(&Request{Ctx: r.Context(), Query: query, server: s, w: w, http: r})
}

// nextLine waits for what to write next: a value, an empty line if no value came for
// keepAlive, or the last line. A reader that has left gets nothing.
func nextLine(ctx context.Context, source Source) (line []byte, last bool) {
	wait, cancel := context.WithTimeout(ctx, keepAlive)
	defer cancel()
	v, err := source.Next(wait)
	switch {
	case err == nil:
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return []byte("\n"), false
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errStopping):
		return nil, true
	default: // the source has ended, or the daemon stops
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		last = true
		v = source.Last(err)
	}
	line, err = encode(v)
	return line, last || err != nil
}
