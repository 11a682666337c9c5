package trace

import (
	"context"
	"time"
)

// Span is one thing that was done, and how long it took. One goroutine makes a span; any goroutine may
// call the span's Child.
type Span struct {
	tracer     *Tracer
	trace      [2]uint64
	id, parent uint64 // parent 0: none
	name       string
	kind       int
	began, end time.Time
	err        error
	about      []any // pairs of keys and values
}

// The kinds of spans that there are (opentelemetry.proto.trace.v1.Span.SpanKind).
const (
	kindInternal = 1
	kindServer   = 2
)

type key struct{}

// Into returns a context in which From finds s.
func (s *Span) Into(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, s)
}

// From returns the span under which somebody acts, or nil.
func From(ctx context.Context) *Span {
	s, _ := ctx.Value(key{}).(*Span)
	return s
}

// End ends a span, and hands it to the export. err says that what was done has failed.
func (s *Span) End(err error, about ...any) {
	if s == nil {
		return
	}
	s.end, s.err, s.about = since(s.began), err, about
	s.tracer.put(s)
}

// Child makes a span below s, of something that began at the time `began`, and ends now.
func (s *Span) Child(name string, began time.Time, err error, about ...any) {
	if s == nil {
		return
	}
	c := &Span{
		tracer: s.tracer, trace: s.trace, id: newID(), parent: s.id,
		name: name, kind: kindInternal, began: began, end: since(began), err: err, about: about,
	}
	s.tracer.put(c)
}

// since returns the time now by the clock of began, also if somebody has set the clock since.
func since(began time.Time) time.Time { return began.Add(time.Since(began)) }

// put hands a span to the export, if there is room.
func (t *Tracer) put(s *Span) {
	select {
	case t.queue <- s:
	default:
		t.dropped.Add(1)
	}
}
