package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// Route is what a server does at a method and path. It has either a Call, a
// Stream or a Handler.
type Route struct {
	Method string
	// Path is compared literally. If it ends in "/{id}", a request may have anything in
	// place of {id}, slashes too; Call finds that in Request.ID.
	Path string
	Verb string // as metrics and logs call it

	// Parameters are the names of the parameters that the query of a Call or a Stream may have.
	Parameters []string

	// Call answers with one JSON value.
	Call func(*Request) (*Answer, error)
	// Limit is how long a Call may take if the request has no deadline.
	Limit time.Duration
	// Lane is where a Call waits for its place. A Call without a lane needs no
	// place, and is executed before Open too.
	Lane Lane
	// Finish lets a Call go on when the client has left, because its work has to be done in
	// any case.
	Finish bool

	// Stream answers without end: a JSON value a line.
	Stream func(*Request) (Source, error)

	// Handler answers in its own way, within a few seconds.
	Handler http.HandlerFunc
}

// Request is what a Call or a Stream has to answer.
type Request struct {
	Ctx   context.Context // ends shortly before the client gives up
	When  When            // only for a Call
	ID    string          // what the path has in place of {id}
	Query Query

	server *Server
	w      http.ResponseWriter // to limit reading
	http   *http.Request
	about  func() []any
}

// About sets what the log says, as pairs of keys and values, if the request fails. The server
// calls about only then.
func (r *Request) About(about func() []any) { r.about = about }

// Restoring reports whether the server waits for its Open. In a Call with a lane, Restoring always
// returns false.
func (r *Request) Restoring() bool { return !r.server.queue.isOpen() }

// Answer is what a Call answers with.
type Answer struct {
	Status int // of HTTP; 206 means that something is owed
	Value  any // encoded as JSON
}

// OK answers a value with status 200.
func OK(value any) (*Answer, error) { return &Answer{http.StatusOK, value}, nil }

// own lists the routes that every server has.
func (s *Server) own() []Route {
	return []Route{
		{Method: "GET", Path: api.PathHealth, Verb: "health", Call: health, Limit: 10 * time.Second},
		{Method: "GET", Path: api.PathMetrics, Verb: "metrics", Handler: s.metrics.handler(s.log).ServeHTTP},
	}
}

// health answers 200 whenever the server runs. The field serving is for a check of
// readiness. A check of liveness must not look at it, or it would kill a daemon that
// restores.
func health(r *Request) (*Answer, error) { return OK(api.Health{Serving: !r.Restoring()}) }

// router finds routes. It is not http.ServeMux, whose own answers (redirects,
// 404, 405) are not JSON.
type router struct {
	exact map[string]methods // by path
	below map[string]methods // by the part of a path before its {id}
	hint  string             // what the answer to an unknown path says
}

// methods are the routes of one path.
type methods map[string]*Route

const idSuffix = "{id}"

func newRouter(routes []Route, hint string) router {
	rt := router{exact: map[string]methods{}, below: map[string]methods{}, hint: hint}
	for _, r := range routes {
		paths, path := rt.exact, r.Path
		if before, ok := strings.CutSuffix(path, idSuffix); ok {
			paths, path = rt.below, before
		}
		if paths[path] == nil {
			paths[path] = methods{}
		}
		paths[path][r.Method] = &r
	}
	return rt
}

// find returns a request's route, and the id in its path if the route has one.
func (rt router) find(method, path string, h http.Header) (*Route, string, error) {
	found, id := rt.exact[path], ""
	if found == nil {
		before := ""
		for b, m := range rt.below {
			if rest, ok := strings.CutPrefix(path, b); ok && len(b) > len(before) {
				found, before, id = m, b, rest
			}
		}
		if found != nil {
			path = before + idSuffix
		}
	}
	if found == nil {
		return nil, "", noPath(path, rt.hint)
	}
	if r := found[method]; r != nil {
		return r, id, nil
	}
	allowed := strings.Join(slices.Sorted(maps.Keys(found)), ", ")
	h.Set("Allow", allowed)
	return nil, "", &statusError{http.StatusMethodNotAllowed,
		cni.Errorf(cni.CodeEnv, "no such method", "%.16q; %s has %s", method, path, allowed)}
}

// noPath returns a 404 whose code differs from the code of an unknown thing, so that no client
// takes the answer to a wrong path for the news that its deletion is done.
func noPath(path, hint string) error {
	return &statusError{http.StatusNotFound, cni.Errorf(cni.CodeEnv, "no such path", "%.64q; %s", path, hint)}
}
