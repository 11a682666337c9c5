// Package trace makes spans of what is asked of a daemon, and exports them as OpenTelemetry's
// collectors take them (OTLP 1.x over HTTP, in JSON).
//
// A nil *Tracer and a nil *Span do nothing and cost nothing: that is how tracing is off, and how
// a request is not sampled. span.go has the spans, parent.go the parent that a request names,
// export.go the way to the endpoint, which can lose nothing but spans, and otlp.go the messages
// that are sent there.
package trace

import (
	"cmp"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// Options say where spans go, and which are made.
type Options struct {
	// Endpoint is the URL to which spans are posted. "": none are made.
	Endpoint string
	// Sampling is the part, from 0 to 1, of the requests without a parent that are traced. A
	// request with a parent is traced if the parent is.
	Sampling float64
	// Service describes the program, as pairs of keys and values.
	Service []string
	Version string // of the program
	Log     *slog.Logger
	// Room is how many spans wait for their export; further ones are dropped. 0 is 4096.
	Room int
}

// Limits of exports.
const (
	room      = 4096
	perExport = 512                    // spans of one export
	linger    = 2 * time.Second        // how long a span waits for others to go with it
	patience  = 10 * time.Second       // how long one export may take
	lastWords = 250 * time.Millisecond // for the export at the end
)

// Tracer makes spans, and exports them while Keep runs.
type Tracer struct {
	Options
	client   http.Client
	queue    chan *Span
	exported atomic.Uint64
	dropped  atomic.Uint64
	failing  bool // the last export failed; only Keep uses it
}

// New returns a tracer, or nil if there is no endpoint.
func New(o Options) *Tracer {
	if o.Endpoint == "" {
		return nil
	}
	return &Tracer{
		Options: o,
		queue:   make(chan *Span, cmp.Or(o.Room, room)),
		client: http.Client{
			Transport: &http.Transport{
				Proxy: http.ProxyFromEnvironment, MaxConnsPerHost: 1, IdleConnTimeout: time.Minute,
				MaxResponseHeaderBytes: 64 << 10,
			},
			// Spans go where the configuration says, and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Stats returns how many spans were exported, and how many were dropped.
func (t *Tracer) Stats() (exported, dropped uint64) {
	if t == nil {
		return 0, 0
	}
	return t.exported.Load(), t.dropped.Load()
}

// Request begins the span of a request. traceparent has the request's headers of this name, which may
// name a parent. Request returns nil if the request is not traced.
func (t *Tracer) Request(name string, traceparent []string) *Span {
	if t == nil {
		return nil
	}
	s := &Span{tracer: t, name: name, kind: kindServer, id: newID()}
	p, ok := parseParent(traceparent)
	switch {
	case ok && !p.sampled, !ok && rand.Float64() >= t.Sampling:
		return nil
	case ok:
		s.trace, s.parent = p.trace, p.span
	default:
		s.trace = [2]uint64{newID(), newID()}
	}
	s.began = time.Now()
	return s
}

// newID returns a random id, which is not 0: 0 is no id.
func newID() uint64 { return rand.Uint64N(1<<64-1) + 1 }
