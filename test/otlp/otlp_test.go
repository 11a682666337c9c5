// Package otlp tests that OpenTelemetry's collector understands the spans of the real agent: the test
// reads the spans by the collector's own code. The package is a module of its own, so that Berth does
// not need what the collector needs.
package otlp

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/berth-net/berth/internal/nettest"
	"github.com/berth-net/berth/test/programs"
)

func TestMain(m *testing.M) { programs.Main(m) }

var must = nettest.Must

// A trace of somebody's, as the variable TRACEPARENT says it.
const (
	trace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent = "00f067aa0ba902b7"
)

// collector is an endpoint that reads spans as the collector's receiver does.
type collector struct {
	mu    sync.Mutex
	spans []ptrace.Span
	about pcommon.Map // of the resource
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	traces, err := new(ptrace.JSONUnmarshaler).UnmarshalTraces(raw)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range traces.ResourceSpans().All() {
		c.about = resource.Resource().Attributes()
		for _, scope := range resource.ScopeSpans().All() {
			for _, s := range scope.Spans().All() {
				c.spans = append(c.spans, s)
			}
		}
	}
	_, _ = io.WriteString(w, "{}")
}

// find returns the spans of that name in somebody's trace.
func (c *collector) find(name string) (found []ptrace.Span) {
	for _, s := range c.spans {
		if s.Name() == name && s.TraceID().String() == trace {
			found = append(found, s)
		}
	}
	return found
}

func (c *collector) names() string {
	var all []string
	for _, s := range c.spans {
		all = append(all, s.TraceID().String()[:4]+" "+s.Name())
	}
	return strings.Join(all, "\n")
}

// A runtime's trace goes on in spans of the agent: a span of each verb, below the runtime's own span,
// and below the verb's span a span of each operation on a hold, also of releases after the answer.
func TestSpans(t *testing.T) {
	nettest.Need(t)
	bin := programs.Own(t)
	c := &collector{}
	endpoint := httptest.NewServer(c)
	t.Cleanup(endpoint.Close)
	n := programs.RunNode(t, bin, "tracing: {endpoint: '"+endpoint.URL+"', sampling: 0}\npools:\n- {name: default, cidrs: [10.88.0.0/24]}\n")
	run := func(verb, container, netns, traceparent string, keys ...string) (string, error) {
		cmd := programs.Plugin(bin, verb, container, netns)
		cmd.Env = append(cmd.Env, "TRACEPARENT="+traceparent)
		cmd.Stdin = strings.NewReader(programs.Conf(n.Root, keys...))
		out, err := cmd.Output()
		return string(out), err
	}
	sampled := "00-" + trace + "-" + parent + "-01"
	pod := nettest.Pod(t).Ref().Path
	if out, err := run("ADD", "c1", pod, sampled); err != nil {
		t.Fatal(err, out)
	}
	if out, err := run("CHECK", "c1", pod, "nonsense"); err == nil { // without prevResult
		t.Fatal(out)
	}
	if out, err := run("ADD", "c2", pod, sampled, `"pool":"none"`); err == nil {
		t.Fatal(out)
	}
	if out, err := run("DEL", "c1", pod, sampled, `"wait":true`); err != nil {
		t.Fatal(err, out)
	}
	for _, header := range []string{"", "00-" + trace + "-" + parent + "-00", "nonsense"} { // not sampled
		if out, err := run("DEL", "c1", pod, header); err != nil {
			t.Fatal(err, out)
		}
	}
	must(t, n.Stop()) // sends the spans that wait
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, _ := c.about.Get("service.name"); name.AsString() != "berthd" {
		t.Errorf("the service is %v", c.about.AsRaw())
	}
	adds, dels := c.find("add"), c.find("delete")
	if len(adds) != 2 || len(dels) != 1 {
		t.Fatalf("%d ADDs and %d DELs:\n%s", len(adds), len(dels), c.names())
	}
	for _, s := range append(adds, dels...) {
		if s.ParentSpanID().String() != parent || s.Kind() != ptrace.SpanKindServer {
			t.Errorf("%s: parent %s, kind %s", s.Name(), s.ParentSpanID(), s.Kind())
		}
		if v, _ := s.Attributes().Get("berth.container"); v.AsString() != "c1" && (s.Name() != "add" || v.AsString() != "c2") {
			t.Errorf("%s is about %v", s.Name(), s.Attributes().AsRaw())
		}
	}
	fine, failed := adds[0].Status(), adds[1].Status()
	if fine.Code() != ptrace.StatusCodeUnset || failed.Code() != ptrace.StatusCodeError || !strings.Contains(failed.Message(), "none") {
		t.Errorf("the first ADD is %s, and the second %s: %s", fine.Code(), failed.Code(), failed.Message())
	}
	for name, above := range map[string]ptrace.Span{
		"acquire link": adds[0], "acquire flows": adds[0],
		"cut link": dels[0], "release link": dels[0], "release flows": dels[0],
	} {
		found := c.find(name)
		if len(found) != 1 {
			t.Errorf("%d spans %s:\n%s", len(found), name, c.names())
			continue
		}
		s := found[0]
		if s.ParentSpanID() != above.SpanID() || s.StartTimestamp() < above.StartTimestamp() || s.EndTimestamp() < s.StartTimestamp() {
			t.Errorf("%s is not below %s: parent %s", name, above.Name(), s.ParentSpanID())
		}
		kind := strings.Fields(name)[1]
		if v, _ := s.Attributes().Get("berth.hold"); kind == "link" && !strings.HasPrefix(v.AsString(), "link ") {
			t.Errorf("%s: its hold is %q", name, v.AsString())
		}
	}
	if commits := c.find("commit"); len(commits) < 2 {
		t.Errorf("%d commits:\n%s", len(commits), c.names())
	}
	if len(c.find("check")) != 0 {
		t.Error("a request with a wrong traceparent is traced")
	}
	log, err := os.ReadFile(filepath.Join(n.Root, "berthd.log"))
	must(t, err)
	if strings.Contains(string(log), "spans are lost") {
		t.Errorf("the collector has refused spans:\n%s", log)
	}
}
