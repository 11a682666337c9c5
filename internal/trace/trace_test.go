package trace

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/nettest"
)

const (
	someTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	someSpan  = "00f067aa0ba902b7"
	someOne   = "00-" + someTrace + "-" + someSpan + "-01"
)

func TestParent(t *testing.T) {
	for _, tt := range []struct {
		header      string
		ok, sampled bool
	}{
		{someOne, true, true},
		{"00-" + someTrace + "-" + someSpan + "-00", true, false},
		{"00-" + someTrace + "-" + someSpan + "-03", true, true},      // further flags
		{"cc-" + someTrace + "-" + someSpan + "-01-more", true, true}, // a later version
		{"cc-" + someTrace + "-" + someSpan + "-01", true, true},
		{"", false, false},
		{"00-" + someTrace + "-" + someSpan + "-01-more", false, false},
		{"cc-" + someTrace + "-" + someSpan + "-01more", false, false},
		{"ff-" + someTrace + "-" + someSpan + "-01", false, false},
		{"00-" + strings.Repeat("0", 32) + "-" + someSpan + "-01", false, false},
		{"00-" + someTrace + "-" + strings.Repeat("0", 16) + "-01", false, false},
		{"00-" + strings.ToUpper(someTrace) + "-" + someSpan + "-01", false, false},
		{"00-" + someTrace + "-" + someSpan + "-0x", false, false},
		{"00-" + someTrace[1:] + "--" + someSpan + "-01", false, false},
		{"0-" + someTrace + "-" + someSpan + "-001", false, false},
		{strings.Repeat("-", 55), false, false},
	} {
		p, ok := parseParent([]string{tt.header})
		if ok != tt.ok || ok && p.sampled != tt.sampled {
			t.Errorf("%q: %v, sampled %v", tt.header, ok, p.sampled)
		}
	}
	if _, ok := parseParent([]string{someOne, someOne}); ok {
		t.Error("two headers name a parent")
	}
}

func FuzzParent(f *testing.F) {
	f.Add(someOne)
	f.Add("cc-" + someTrace + "-" + someSpan + "-01-more")
	f.Fuzz(func(t *testing.T, header string) {
		p, ok := parseParent([]string{header})
		if ok && (p.trace == [2]uint64{} || p.span == 0 || len(header) < len(someOne)) {
			t.Errorf("%q: %+v", header, p)
		}
	})
}

// A request with a parent is traced if the parent is. Of the other requests, the tracer traces
// the part that Sampling says.
func TestSampling(t *testing.T) {
	none, all := New(Options{Endpoint: "x"}), New(Options{Endpoint: "x", Sampling: 1})
	unsampled := "00-" + someTrace + "-" + someSpan + "-00"
	for _, tt := range []struct {
		tracer *Tracer
		header []string
		want   bool
	}{
		{none, nil, false}, {all, nil, true},
		{none, []string{someOne}, true}, {all, []string{someOne}, true},
		{none, []string{unsampled}, false}, {all, []string{unsampled}, false},
		{none, []string{"nonsense"}, false}, {all, []string{"nonsense"}, true},
		{nil, []string{someOne}, false},
	} {
		s := tt.tracer.Request("add", tt.header)
		if (s != nil) != tt.want {
			t.Errorf("sampling %+v, %v: traced is %v", tt.tracer, tt.header, s != nil)
		}
		if s != nil && (s.parent != 0) != (len(tt.header) > 0 && tt.header[0] == someOne) {
			t.Errorf("%v: parent %x", tt.header, s.parent)
		}
	}
	half, n := New(Options{Endpoint: "x", Sampling: 0.5}), 0
	for range 10_000 {
		if half.Request("add", nil) != nil {
			n++
		}
	}
	if n < 4500 || n > 5500 { // ten standard deviations
		t.Errorf("half of 10,000 are %d", n)
	}
}

// A tracer that is off costs no memory.
func TestOffIsFree(t *testing.T) {
	var off *Tracer
	header := []string{someOne}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		s := off.Request("add", header)
		s.Into(ctx)
		s.Child("cut", time.Time{}, nil)
		s.End(nil)
		From(ctx).Child("commit", time.Time{}, nil)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// got is what a collector was sent.
type got struct {
	ResourceSpans []struct {
		Resource   struct{ Attributes []attribute }
		ScopeSpans []struct {
			Scope scope
			Spans []span
		}
	}
}

// collector is an endpoint that takes spans.
func collector(t *testing.T) (url string, all func() []span) {
	t.Helper()
	sent := make(chan got, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var g got
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&g); err != nil || r.Method != "POST" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s of %s: %v", r.Method, r.Header.Get("Content-Type"), err)
		}
		sent <- g
		_, _ = io.WriteString(w, `{"partialSuccess":{}}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() (spans []span) {
		for len(sent) > 0 {
			for _, r := range (<-sent).ResourceSpans {
				for _, s := range r.ScopeSpans {
					spans = append(spans, s.Spans...)
				}
			}
		}
		return spans
	}
}

// keep runs Keep. The function that it returns ends Keep, and waits until Keep has ended.
func keep(t *testing.T, tr *Tracer) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); tr.Keep(ctx) }()
	return func() {
		t.Helper()
		cancel()
		select {
		case <-ended:
		case <-time.After(patience / 2): // shorter than an export that hangs
			t.Fatal("Keep has not ended")
		}
	}
}

// At its end the tracer exports what waits: spans with their parents, errors and attributes.
func TestExport(t *testing.T) {
	url, all := collector(t)
	tr := New(Options{Endpoint: url, Service: []string{"service.name", "berthd"}, Version: "v1"})
	end := keep(t, tr)
	s := tr.Request("add", []string{someOne})
	ctx := s.Into(t.Context())
	began := time.Now()
	From(ctx).Child("acquire link", began, errors.New("no \xff such device"), "hold", "link b1", "holds", 3)
	From(ctx).Child("acquire table", began, nil)
	s.End(errors.New(strings.Repeat("x", 5000)), "result", "failed")
	end()
	spans := all()
	if exported, dropped := tr.Stats(); len(spans) != 3 || exported != 3 || dropped != 0 {
		t.Fatalf("%d spans; %d exported, %d dropped", len(spans), exported, dropped)
	}
	byName := map[string]span{}
	for _, s := range spans {
		byName[s.Name] = s
		if s.TraceID != someTrace || s.Start > s.End || len(s.Start) != 19 {
			t.Errorf("%+v", s)
		}
	}
	add, link, table := byName["add"], byName["acquire link"], byName["acquire table"]
	if add.ParentID != someSpan || add.Kind != kindServer || add.Status.Code != statusError || len(add.Status.Message) != longest {
		t.Errorf("add: %+v", add)
	}
	if link.ParentID != add.SpanID || link.Kind != kindInternal || link.Status.Message != "no � such device" ||
		*link.Attributes[0].Value.String != "link b1" || link.Attributes[0].Key != "berth.hold" || link.Attributes[1].Value.Int != "3" {
		t.Errorf("link: %+v", link)
	}
	if table.ParentID != add.SpanID || table.Status != nil || table.SpanID == link.SpanID {
		t.Errorf("table: %+v", table)
	}
}

// Full exports go without waiting for the tracer's end, and a trace that begins here has no parent.
func TestManySpans(t *testing.T) {
	url, all := collector(t)
	tr := New(Options{Endpoint: url, Sampling: 1})
	end := keep(t, tr)
	for range 2 * perExport {
		tr.Request("add", nil).End(nil)
	}
	nettest.Eventually(t, "two full exports", func() bool {
		exported, _ := tr.Stats()
		return exported == 2*perExport
	})
	end()
	spans := all()
	if len(spans) != 2*perExport || spans[0].ParentID != "" || spans[0].TraceID == spans[1].TraceID {
		t.Errorf("%d spans: %+v", len(spans), spans[:2])
	}
}

// An endpoint that hangs, or refuses, costs spans. It delays neither the makers of spans nor
// the tracer's end.
func TestBadEndpoints(t *testing.T) {
	hangs := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))
	defer slow.Close()
	defer close(hangs)
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusBadRequest)
	}))
	defer refuses.Close()
	elsewhere := httptest.NewServer(http.RedirectHandler("http://192.0.2.1/", http.StatusTemporaryRedirect))
	defer elsewhere.Close()
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and nobody reads
	nettest.Must(t, err)
	defer deaf.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	nettest.Must(t, err)
	closed.Close()
	for name, url := range map[string]string{
		"hangs": slow.URL, "refuses": refuses.URL, "elsewhere": elsewhere.URL,
		"deaf": "http://" + deaf.Addr().String(), "closed": "http://" + closed.Addr().String(), "no name": "http://nobody.invalid",
	} {
		t.Run(name, func(t *testing.T) {
			tr := New(Options{Endpoint: url, Sampling: 1, Room: 2 * perExport})
			end := keep(t, tr)
			const made = 5 * perExport
			for range made {
				tr.Request("add", nil).End(nil)
			}
			end()
			exported, dropped := tr.Stats()
			if exported != 0 || dropped != made {
				t.Errorf("%d exported, %d dropped of %d", exported, dropped, made)
			}
		})
	}
}
