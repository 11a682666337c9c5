package server

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/root"
	"github.com/berth-net/berth/internal/trace"
	"github.com/berth-net/berth/internal/trace/tracetest"
)

// A traced request has a span. The span names the thing that the request was about, and says how
// long the request waited for its place, and why it failed, also if it panicked. To delete what
// is not there is no failure.
func TestSpans(t *testing.T) {
	traced := http.Header{"Traceparent": {tracetest.Parent}}
	for _, tt := range []struct {
		method, target, body string
		hook                 func() error
		name, result, fails  string
	}{
		{"POST", pathToys, aToy, func() error { return nil }, "make", "ok", ""},
		{"POST", pathToys, aToy, func() error { return cni.Errorf(cni.CodeInternal, "the head", "is off") }, "make", "failed", "the head: is off"},
		{"POST", pathToys, aToy, func() error { panic("a nil somewhere") }, "make", "failed", "internal error: panic: a nil somewhere"},
		{"DELETE", pathToys + "/bear", "", func() error { return cni.Errorf(cni.CodeUnknown, "no bear", "") }, "break", "unknown", ""},
	} {
		d := newToy(t, root.Dir(t.TempDir()), 0)
		tracer, spans := tracetest.New(t)
		d.tracer = tracer
		d.run(t)
		d.Open()
		d.hook = func(ctx context.Context, _ string, _ When) error {
			trace.From(ctx).Child("work", time.Now(), nil)
			return tt.hook()
		}
		d.ask(t.Context(), tt.method, tt.target, tt.body, traced)
		d.ask(t.Context(), tt.method, tt.target, tt.body, nil) // not traced
		d.ask(t.Context(), tt.method, tt.target, tt.body, http.Header{"Traceparent": {"nonsense"}})
		all := spans()
		s := all[tt.name]
		if s.ParentSpanID != "00f067aa0ba902b7" || s.Says("toy") != "bear" || s.Says("result") != tt.result || s.Status.Message != tt.fails {
			t.Errorf("%s %s: %+v", tt.name, tt.result, s)
		}
		if all["work"].ParentSpanID != s.SpanID || all["wait for a place"].ParentSpanID != s.SpanID {
			t.Errorf("%s %s: below it are %+v", tt.name, tt.result, all)
		}
		if exported, dropped := tracer.Stats(); exported != 3 || dropped != 0 {
			t.Errorf("%s %s: %d spans, %d dropped", tt.name, tt.result, exported, dropped)
		}
	}
}
