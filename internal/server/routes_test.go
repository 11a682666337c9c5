package server

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/events"
)

// TestRoutesAreDocumented compares the server's list with the document's.
func TestRoutesAreDocumented(t *testing.T) {
	s := New(Options{Events: events.NewHub(1), Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)})
	served := map[string]bool{}
	for _, r := range s.routes() {
		served[r.method+" "+r.path] = true
		if (r.call == nil) == (r.stream == nil) || r.call != nil && r.limit == 0 {
			t.Errorf("%s %s: needs a call with a limit, or a stream", r.method, r.path)
		}
	}
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			documented[method+" "+path] = true
			if op.OperationID == "" || op.Summary == "" {
				t.Errorf("%s %s has no name or summary", method, path)
			}
		}
	}
	if diff := cmp.Diff(served, documented); diff != "" {
		t.Errorf("served (-) and documented (+):\n%s", diff)
	}
	if len(served) != len(s.routes()) {
		t.Errorf("a route is there twice: %v", fmt.Sprint(slices.Sorted(maps.Keys(served))))
	}
}
