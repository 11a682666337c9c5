package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/trace"
	"github.com/berth-net/berth/internal/turn"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// These deadlines hold until the request's own deadline is known. Both calls fail only
	// for a connection without deadlines, such as a test's.
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(grace))
	_ = conn.SetWriteDeadline(time.Now().Add(grace))

	rt, id, err := s.router.find(r.Method, r.URL.Path, w.Header())
	if err == nil && r.Method != http.MethodPost && r.ContentLength != 0 {
		err = cni.Errorf(cni.CodeDecode, "unexpected body", "%s %s takes no body", r.Method, rt.Path)
	}
	switch {
	case err != nil:
		s.write(w, s.toAnswer(err))
	case rt.Stream != nil:
		s.stream(rt, w, r)
	case rt.Handler != nil:
		rt.Handler(w, r)
	default:
		began := time.Now()
		a := s.answer(rt, id, w, r)
		s.metrics.observeVerb(rt.Verb, outcome(a), time.Since(began))
		s.write(w, a)
	}
}

// answer executes a call. If the call fails or panics, the answer says so.
func (s *Server) answer(rt *Route, id string, w http.ResponseWriter, r *http.Request) (a *Answer) {
	var req Request
	span := s.tracer.Request(rt.Verb, r.Header["Traceparent"])
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a request", "verb", rt.Verb, "panic", p, "stack", string(debug.Stack()))
			a = s.toAnswer(cni.Errorf(cni.CodeInternal, "internal error", "panic: %v", p))
		}
		if span != nil {
			s.ended(span, a, &req)
		}
	}()
	began := time.Now()
	a, err := s.execute(rt, &req, id, span, w, r)
	if err != nil {
		a = s.toAnswer(err)
	}
	if e, failed := a.Value.(*api.Error); failed {
		level, about := slog.LevelDebug, []any(nil)
		if req.about != nil {
			about = req.about()
		}
		switch {
		case a.Status >= 500:
			level = slog.LevelWarn
		case about != nil && a.Status != http.StatusNotFound: // to delete what is not there is no failure
			level = slog.LevelInfo
		}
		s.log.Log(r.Context(), level, "request failed",
			append(append([]any{"verb", rt.Verb, "status", a.Status, "code", e.Code, "error", e.Error()}, about...), "took", time.Since(began).Round(time.Microsecond))...)
	}
	return a
}

// ended ends the span of a request.
func (s *Server) ended(span *trace.Span, a *Answer, req *Request) {
	about := []any{"result", outcome(a)}
	if req.about != nil {
		about = append(about, req.about()...)
	}
	var failure error
	if e, failed := a.Value.(*api.Error); failed {
		about = append(about, "code", int(e.Code))
		if a.Status != http.StatusNotFound { // to delete what is not there is no failure
			failure = e
		}
	}
	span.End(failure, about...)
}

// execute sets a request's deadlines, waits for its place, and makes the call with req.
func (s *Server) execute(rt *Route, req *Request, id string, span *trace.Span, w http.ResponseWriter, r *http.Request) (*Answer, error) {
	when, bad := parseWhen(r.Header, rt.Limit)
	if bad != nil {
		return nil, bad
	}
	end := time.Now().Add(when.Remaining() + grace)
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(end)
	_ = conn.SetWriteDeadline(end)
	ctx, cancel := context.WithTimeout(r.Context(), when.budget())
	defer cancel()
	p := &place{server: s, route: rt}
	if rt.Lane != (Lane{}) {
		arrived := time.Now()
		err := p.enter(ctx)
		if span != nil {
			span.Child("wait for a place", arrived, err, "lane", rt.Lane.Name)
		}
		if err != nil {
			return nil, err
		}
		defer p.leave()
	}
	if when.Remaining() <= 0 { // the context's clock stands still in a suspended machine
		return nil, expired(when)
	}
	if rt.Finish {
		ctx, cancel = context.WithTimeout(s.ctx, when.budget())
		defer cancel()
	}
	if rt.Lane != (Lane{}) {
		ctx = turn.WithPlace(ctx, turn.Place{Leave: p.aside, Enter: p.enter, Ended: s.stopping, Why: numbered(errStopping)})
	}
	ctx = span.Into(ctx)
	query, err := parseQuery(r, rt.Parameters...)
	if err != nil {
		return nil, err
	}
	*req = Request{Ctx: ctx, When: when, ID: id, Query: query, server: s, w: w, http: r}
	return rt.Call(req)
}

// write sends an answer. If the client has left, write only logs that.
func (s *Server) write(w http.ResponseWriter, a *Answer) {
	raw, err := encode(a.Value)
	if err != nil {
		s.log.Error("could not encode an answer", "error", err)
		a = s.toAnswer(fmt.Errorf("encoding the answer: %w", err))
		raw, _ = encode(a.Value) // an *api.Error is strings and a number: it cannot fail
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(a.Status)
	if _, err := w.Write(raw); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		s.log.Debug("could not write an answer", "error", err)
	}
}

// encode returns a value as one line of JSON.
func encode(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	return append(raw, '\n'), err
}
