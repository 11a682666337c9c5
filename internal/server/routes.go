package server

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// route is what the server does at a method and path.
type route struct {
	method, path string
	verb         string // as metrics and logs call it

	// call answers with one JSON value, within limit unless the request says
	// otherwise. It waits in its lane, if it has one.
	call  func(*Server, *request) (*answer, error)
	limit time.Duration
	queue bool
	lane  lane
	// finish goes on when the client is gone: what is asked for is to be done
	// in any case.
	finish bool

	stream http.HandlerFunc // instead of call: answers in its own way
}

// answer is what a call answers with.
type answer struct {
	status int
	value  any // encoded as JSON
}

func ok(value any) (*answer, error) { return &answer{http.StatusOK, value}, nil }

// routes lists all that the server does. openapi.yaml has the same list.
func (s *Server) routes() []route {
	const one = api.PathAttachments + "/{id}"
	return []route{
		{method: "POST", path: api.PathAttachments, verb: "add", call: (*Server).add, limit: time.Minute, queue: true, lane: laneAdd},
		{method: "GET", path: api.PathAttachments, verb: "list", call: (*Server).list, limit: 10 * time.Second, queue: true, lane: laneRead},
		{method: "DELETE", path: api.PathAttachments, verb: "delete", call: (*Server).delete, limit: time.Minute, queue: true, lane: laneDelete, finish: true},
		{method: "GET", path: one, verb: "get", call: (*Server).get, limit: 10 * time.Second, queue: true, lane: laneRead},
		{method: "DELETE", path: one, verb: "delete", call: (*Server).deleteOne, limit: time.Minute, queue: true, lane: laneDelete, finish: true},
		{method: "POST", path: api.PathCheck, verb: "check", call: (*Server).check, limit: 30 * time.Second, queue: true, lane: laneCheck},
		{method: "POST", path: api.PathGC, verb: "gc", call: (*Server).gc, limit: time.Minute, queue: true, lane: laneGC, finish: true},
		{method: "GET", path: api.PathPools, verb: "pools", call: (*Server).pools, limit: 10 * time.Second, queue: true, lane: laneRead},
		{method: "GET", path: api.PathLedger, verb: "ledger", call: (*Server).ledger, limit: 30 * time.Second, queue: true, lane: laneRead},
		{method: "GET", path: api.PathAudit, verb: "audit", call: (*Server).audit, limit: time.Minute, queue: true, lane: laneRead},
		{method: "GET", path: api.PathOwed, verb: "owed", call: (*Server).owed, limit: 10 * time.Second, queue: true, lane: laneRead},
		{method: "POST", path: api.PathOwedRetry, verb: "retry", call: (*Server).retryOwed, limit: time.Minute, queue: true, lane: laneGC, finish: true},
		{method: "GET", path: api.PathStatus, verb: "status", call: (*Server).status, limit: 10 * time.Second},
		{method: "GET", path: api.PathHealth, verb: "health", call: (*Server).health, limit: 10 * time.Second},
		{method: "GET", path: api.PathEvents, verb: "events", stream: s.streamEvents},
		{method: "GET", path: api.PathMetrics, verb: "metrics", stream: s.metrics.handler(s.log).ServeHTTP},
		{method: "GET", path: api.PathOpenAPI, verb: "openapi", stream: serveOpenAPI},
	}
}

// router finds routes. It is not http.ServeMux, whose own answers (redirects,
// 404, 405) are not JSON.
type router map[string]map[string]*route // by path, by method

func newRouter(routes []route) router {
	rt := router{}
	for _, r := range routes {
		if rt[r.path] == nil {
			rt[r.path] = map[string]*route{}
		}
		rt[r.path][r.method] = &r
	}
	return rt
}

// find returns a request's route and its path's id, if that has one.
func (rt router) find(method, path string, h http.Header) (*route, string, error) {
	id := ""
	if rest, ok := strings.CutPrefix(path, api.PathAttachments+"/"); ok {
		path, id = api.PathAttachments+"/{id}", rest
	}
	methods := rt[path]
	if methods == nil {
		return nil, "", noPath(path, api.PathOpenAPI+" lists all paths")
	}
	if r := methods[method]; r != nil {
		return r, id, nil
	}
	var allowed []string
	for m := range methods {
		allowed = append(allowed, m)
	}
	slices.Sort(allowed)
	h.Set("Allow", strings.Join(allowed, ", "))
	return nil, "", &statusError{http.StatusMethodNotAllowed,
		cni.Errorf(cni.CodeEnv, "no such method", "%.16q; %s has %s", method, path, strings.Join(allowed, ", "))}
}

// noPath is 404 with another code than what is not in the ledger, so that
// nobody takes a wrong path for a deletion that has been done.
func noPath(path, hint string) error {
	return &statusError{http.StatusNotFound, cni.Errorf(cni.CodeEnv, "no such path", "%.64q; %s", path, hint)}
}
