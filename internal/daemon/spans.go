package daemon

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/berth-net/berth/internal/engine"
	"github.com/berth-net/berth/internal/hold"
	"github.com/berth-net/berth/internal/trace"
)

// Trace has the daemon called name make spans, and post them to endpoint, if endpoint is not "".
func (o *Options) Trace(name, version, endpoint string, sampling float64) {
	node, _ := os.Hostname()
	o.Tracer = trace.New(trace.Options{
		Endpoint: endpoint, Sampling: sampling, Version: version, Log: o.Log,
		Service: []string{"service.name", name, "service.version", version, "host.name", node},
	})
}

// A request for a release is answered long before the holds are given back. Spans of a release stay
// below its request's span for 5 minutes, and for at most 16384 owners at once: a release that is
// owed for days makes no spans without end.
const (
	followed = 5 * time.Minute
	most     = 16384
)

// spans makes spans of an engine's work, below the span of the request that asked for the work.
// Work that no request asked for, such as a sweep's repairs, has no span.
type spans struct {
	mu      sync.Mutex
	leaving map[hold.ID]release
}

// release is a release that a request has asked for.
type release struct {
	span  *trace.Span // of the request
	until time.Time
}

// newSpans returns the engine's tracer for t; nil if t is nil.
func newSpans(t *trace.Tracer) engine.Tracer {
	if t == nil {
		return nil
	}
	return &spans{leaving: map[hold.ID]release{}}
}

// Acted is engine.Tracer's.
func (s *spans) Acted(ctx context.Context, op string, h hold.Hold, began time.Time, holds int, err error) {
	span := trace.From(ctx)
	if op != "acquire" {
		span = s.of(h.Owner)
	}
	if span == nil {
		return
	}
	about := []any{"hold", h.Spec, "owner", h.Owner}
	if holds > 1 {
		about = append(about, "holds", holds)
	}
	span.Child(op+" "+h.Spec.Kind(), began, err, about...)
}

// Committed is engine.Tracer's.
func (s *spans) Committed(ctx context.Context, began time.Time, err error) {
	trace.From(ctx).Child("commit", began, err)
}

// Leaves is engine.Tracer's.
func (s *spans) Leaves(ctx context.Context, ids []hold.ID) {
	span := trace.From(ctx)
	if span == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if len(s.leaving) < most {
			s.leaving[id] = release{span, time.Now().Add(followed)}
		}
	}
}

// Left is engine.Tracer's.
func (s *spans) Left(id hold.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaving, id)
}

// of returns the span of the request that has asked for an owner's release; nil: no traced request has
// asked for the release, or one has asked long ago.
func (s *spans) of(id hold.ID) *trace.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.leaving[id]
	if ok && time.Now().After(r.until) {
		delete(s.leaving, id)
		return nil
	}
	return r.span
}
