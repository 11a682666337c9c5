// Package tracetest has an endpoint for traces, for tests. test/otlp has one that reads spans by
// the code of OpenTelemetry's collector.
package tracetest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/berth-net/berth/internal/trace"
)

// Parent is the header of a request that is traced.
const Parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// Span has the parts of a span that the tests look at.
type Span struct {
	Name         string
	SpanID       string
	ParentSpanID string
	Attributes   []struct {
		Key   string
		Value struct{ StringValue, IntValue string }
	}
	Status struct {
		Code    int
		Message string
	}
}

// Says returns the value of an attribute, or "".
func (s Span) Says(key string) string {
	for _, a := range s.Attributes {
		if a.Key == "berth."+key {
			return a.Value.StringValue + a.Value.IntValue
		}
	}
	return ""
}

// New returns a tracer of requests with a parent, and a function that returns the spans of all
// requests that have been answered since, by their names. The test calls this function only once.
func New(t testing.TB) (*trace.Tracer, func() map[string]Span) {
	t.Helper()
	var body struct {
		ResourceSpans []struct {
			ScopeSpans []struct{ Spans []Span }
		}
	}
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("spans: %v", err)
		}
	}))
	t.Cleanup(endpoint.Close)
	tracer := trace.New(trace.Options{Endpoint: endpoint.URL})
	return tracer, func() map[string]Span {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		tracer.Keep(over) // exports all that waits, in one go
		all := map[string]Span{}
		for _, r := range body.ResourceSpans {
			for _, s := range r.ScopeSpans {
				for _, span := range s.Spans {
					all[span.Name] = span
				}
			}
		}
		return all
	}
}
