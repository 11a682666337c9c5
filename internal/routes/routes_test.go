package routes

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/daemon/server"
	"github.com/berth-net/berth/internal/nettest"
)

// TestRoutesAreDocumented compares the server's list of routes with the document's.
func TestRoutesAreDocumented(t *testing.T) {
	list := New(nil, nil, server.Options{Metrics: server.NewMetrics(), Log: slog.New(slog.DiscardHandler)}).Routes()
	served := map[string]bool{}
	for _, r := range list {
		served[r.Method+" "+r.Path] = true
		ways := 0
		for _, has := range []bool{r.Call != nil, r.Stream != nil, r.Handler != nil} {
			if has {
				ways++
			}
		}
		if ways != 1 || r.Call != nil && r.Limit == 0 {
			t.Errorf("%s %s: needs a Call with a limit, a Stream or a Handler", r.Method, r.Path)
		}
	}
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	nettest.Must(t, err)
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
	if len(served) != len(list) {
		t.Errorf("a route is there twice: %v", fmt.Sprint(slices.Sorted(maps.Keys(served))))
	}
}

// The lanes take turns in their order, and deletions have places of their own.
func TestLanes(t *testing.T) {
	var lanes []server.Lane
	for _, r := range new(agent).routes() {
		if r.Lane != (server.Lane{}) && !slices.Contains(lanes, r.Lane) {
			lanes = append(lanes, r.Lane)
		}
		if r.Lane.Deletions != (r.Verb == "delete") || r.Lane.Deletions && !r.Finish {
			t.Errorf("%s %s waits in %+v, finish %v", r.Method, r.Path, r.Lane, r.Finish)
		}
	}
	if want := []server.Lane{laneAdd, laneDelete, laneCheck, laneGC, laneRead}; !slices.Equal(lanes, want) {
		t.Errorf("lanes %v, want %v", lanes, want)
	}
}
