package trace

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// The exporter sends an ExportTraceServiceRequest in OTLP's JSON, where ids are hexadecimal and
// numbers of 64 bits are text (OTLP specification 1.x, "JSON Protobuf Encoding").
type (
	request struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	span struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		ParentID   string      `json:"parentSpanId,omitempty"`
		Flags      int         `json:"flags"` // the lowest bit: sampled
		Name       string      `json:"name"`
		Kind       int         `json:"kind"`
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []attribute `json:"attributes,omitempty"`
		Status     *status     `json:"status,omitempty"`
	}
	status struct {
		Code    int    `json:"code"`
		Message string `json:"message,omitempty"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String *string `json:"stringValue,omitempty"`
		Int    string  `json:"intValue,omitempty"`
	}
)

// statusError is STATUS_CODE_ERROR.
const statusError = 2

// longest is how many bytes of a text an export has at most.
const longest = 1024

// encode returns the body of the request that exports spans.
func (t *Tracer) encode(batch []*Span) ([]byte, error) {
	spans := make([]span, len(batch))
	for i, s := range batch {
		spans[i] = s.encoded()
	}
	service := make([]any, len(t.Service))
	for i, s := range t.Service {
		service[i] = s
	}
	return json.Marshal(request{[]resourceSpans{{
		Resource:   resource{attributes("", service)},
		ScopeSpans: []scopeSpans{{Scope: scope{"github.com/berth-net/berth", t.Version}, Spans: spans}},
	}}})
}

func (s *Span) encoded() span {
	out := span{
		TraceID: fmt.Sprintf("%016x%016x", s.trace[0], s.trace[1]), SpanID: fmt.Sprintf("%016x", s.id), Flags: 1,
		Name: s.name, Kind: s.kind, Start: nanoseconds(s.began), End: nanoseconds(s.end),
		Attributes: attributes("berth.", s.about),
	}
	if s.parent != 0 {
		out.ParentID = fmt.Sprintf("%016x", s.parent)
	}
	if s.err != nil {
		out.Status = &status{statusError, cut(s.err.Error())}
	}
	return out
}

func nanoseconds(at time.Time) string { return strconv.FormatInt(at.UnixNano(), 10) }

// attributes returns pairs of keys and values, as the log has them, with keys that begin with
// prefix.
func attributes(prefix string, pairs []any) []attribute {
	all := make([]attribute, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		a := attribute{Key: prefix + fmt.Sprint(pairs[i])}
		if n, ok := pairs[i+1].(int); ok {
			a.Value.Int = strconv.Itoa(n)
		} else {
			text := cut(fmt.Sprint(pairs[i+1]))
			a.Value.String = &text
		}
		all = append(all, a)
	}
	return all
}

// cut returns the beginning of a long text. json.Marshal replaces what is left of a character
// that it cuts through.
func cut(text string) string { return text[:min(len(text), longest)] }
