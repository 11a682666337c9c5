package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/trace"
	"github.com/berth-net/berth/internal/trace/tracetest"
)

// thing is a hold's spec.
type thing struct{}

func (thing) Kind() string   { return "thing" }
func (thing) String() string { return "thing 7" }

// The spans of an engine's work for a request are below the request's span, both for the work
// before the answer and, for a while, for the work after it.
func TestSpansOfHolds(t *testing.T) {
	tracer, exported := tracetest.New(t)
	request := tracer.Request("delete", []string{tracetest.Parent})
	ctx, background := request.Into(t.Context()), t.Context()
	s := newSpans(tracer)
	h := hold.Hold{Owner: "aaaaaaaaaa", Spec: thing{}}
	s.Acted(ctx, "acquire", h, time.Now(), 1, nil)
	s.Acted(background, "cut", h, time.Now(), 1, nil) // no request has asked for this cut
	s.Committed(background, time.Now(), nil)
	s.Leaves(background, []hold.ID{h.Owner})
	s.Leaves(ctx, []hold.ID{h.Owner})
	s.Acted(background, "release", h, time.Now(), 32, errors.New("device busy"))
	s.Left(h.Owner)
	s.Acted(background, "sever", h, time.Now(), 1, nil) // the owner is gone
	request.End(nil)
	all := exported()
	if len(all) != 3 {
		t.Errorf("spans: %+v", all)
	}
	acquire, release := all["acquire thing"], all["release thing"]
	if acquire.ParentSpanID != all["delete"].SpanID || acquire.Says("hold") != "thing 7" || acquire.Says("owner") != "aaaaaaaaaa" ||
		acquire.Says("holds") != "" || acquire.Status.Code != 0 {
		t.Errorf("%+v", acquire)
	}
	if release.ParentSpanID != all["delete"].SpanID || release.Says("holds") != "32" || release.Status.Code != 2 || release.Status.Message != "device busy" {
		t.Errorf("%+v", release)
	}
}

// A release that is owed for long does not make spans for ever, and many owners of such releases do
// not fill the memory.
func TestSpansEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer := trace.New(trace.Options{Endpoint: "http://127.0.0.1", Sampling: 1})
		ctx := tracer.Request("delete", nil).Into(context.Background())
		s := newSpans(tracer).(*spans)
		s.Leaves(ctx, []hold.ID{"a", "b"})
		time.Sleep(followed)
		if s.of("a") == nil {
			t.Error("a release has no span any more")
		}
		time.Sleep(time.Nanosecond)
		if s.of("a") != nil || len(s.leaving) != 1 {
			t.Errorf("a release is followed for ever: %d", len(s.leaving))
		}
		for i := range 2 * most {
			s.Leaves(ctx, []hold.ID{hold.ID(fmt.Sprint(i))})
		}
		if len(s.leaving) > most {
			t.Errorf("%d owners are remembered", len(s.leaving))
		}
	})
}

// Without tracing an engine has no tracer to call.
func TestNoSpans(t *testing.T) {
	if newSpans(nil) != nil {
		t.Error("there is a tracer")
	}
}
