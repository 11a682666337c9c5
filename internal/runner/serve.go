package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/runner/wire"
)

// Limits that a request cannot change.
const (
	headTime  = 5 * time.Second // to send a request's header
	bodyTime  = 5 * time.Second // and its body
	writeTime = 5 * time.Second // to take the answer
	idleTime  = time.Minute     // between requests of a connection
	maxHeader = 16 << 10        // bytes
)

// requests counts the requests under way: their bodies are in memory.
type requests struct{ underWay atomic.Int64 }

func (r *Runner) newHTTP() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.PathRun, func(w http.ResponseWriter, req *http.Request) {
		serve(r, w, req, func(ctx context.Context, in wire.Request) (any, error) { return r.run(ctx, in) })
	})
	mux.HandleFunc("POST "+wire.PathFind, func(w http.ResponseWriter, req *http.Request) {
		serve(r, w, req, func(_ context.Context, in wire.Find) (any, error) { return r.find(in) })
	})
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: headTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog:    slog.NewLogLogger(r.log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return r.ctx },
	}
}

// serve reads a request, has do answer it, and writes the answer.
func serve[In any](r *Runner, w http.ResponseWriter, req *http.Request, do func(context.Context, In) (any, error)) {
	out, err := r.answer(func() (any, error) {
		if n := r.underWay.Add(1); n > backlog+int64(r.queue.places+r.queue.own) {
			return nil, cni.Errorf(cni.CodeTryAgain, "berth-runner is busy", "%d requests are under way", n)
		}
		var in In
		if err := body(w, req, &in); err != nil {
			return nil, err
		}
		return do(req.Context(), in)
	})
	status := http.StatusOK
	if err != nil {
		e := numbered(err)
		r.log.Info("a request failed", "path", req.URL.Path, "error", e.Error())
		out, status = e, statusOf(e.Code)
	}
	raw, err := json.Marshal(out) // of numbers, strings and bytes: it cannot fail
	if err != nil {
		r.log.Error("could not encode an answer", "err", err)
	}
	// SetWriteDeadline fails only for a connection without deadlines, such as a test's.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the client may have left
}

// answer calls do. If do panics, the error says so.
func (r *Runner) answer(do func() (any, error)) (out any, err error) {
	defer r.underWay.Add(-1)
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("panic in a request", "panic", p, "stack", string(debug.Stack()))
			err = cni.Errorf(cni.CodeInternal, "internal error", "panic: %v", p)
		}
	}()
	return do()
}

// body reads a request's body, a single JSON object without unknown keys. Once the body is read, the
// server notices when the client leaves.
func body(w http.ResponseWriter, req *http.Request, into any) error {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyTime)) // see SetWriteDeadline
	raw, err := io.ReadAll(http.MaxBytesReader(w, req.Body, wire.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return cni.Errorf(cni.CodeDecode, "the request is too large", "a body has at most %d bytes", wire.MaxBody)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return cni.Errorf(cni.CodeTryAgain, "the request did not arrive", "its body did not arrive within %v", bodyTime)
	case err != nil:
		return cni.Errorf(cni.CodeDecode, "the request did not arrive", "reading its body: %v", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return decode(raw, into)
}

func decode(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && d.InputOffset() != int64(len(bytes.TrimRight(raw, " \t\r\n"))) {
		err = errors.New("something follows the JSON object")
	}
	if err != nil {
		return cni.Errorf(cni.CodeDecode, "the request is malformed", "its body: %v", err)
	}
	return nil
}

// numbered returns an error as an *api.Error, and gives it a code if it has none.
func numbered(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return cni.Errorf(cni.CodeInternal, "internal error", "%v", err)
}

// statusOf returns the HTTP status of a refusal's code.
func statusOf(code uint) int {
	switch code {
	case cni.CodeEnv, cni.CodeDecode, cni.CodeConfig:
		return http.StatusBadRequest
	case cni.CodeTryAgain:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
