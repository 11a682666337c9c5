package server

import (
	"net/http"
	"testing"
)

// find distinguishes paths beside and below each other.
func TestFind(t *testing.T) {
	rt := newRouter([]Route{
		{Method: "GET", Path: "/a", Verb: "list"},
		{Method: "GET", Path: "/a/{id}", Verb: "get"},
		{Method: "PUT", Path: "/a/{id}", Verb: "put"},
		{Method: "GET", Path: "/a/b/{id}", Verb: "deeper"},
		{Method: "GET", Path: "/a/all", Verb: "all"},
	}, "look elsewhere")
	for _, c := range []struct{ method, path, verb, id, err, allow string }{
		{method: "GET", path: "/a", verb: "list"},
		{method: "GET", path: "/a/", verb: "get"},
		{method: "GET", path: "/a/x", verb: "get", id: "x"},
		{method: "PUT", path: "/a/x/y", verb: "put", id: "x/y"},
		{method: "GET", path: "/a/{id}", verb: "get", id: "{id}"},
		{method: "GET", path: "/a/b/x", verb: "deeper", id: "x"},
		{method: "GET", path: "/a/b", verb: "get", id: "b"},
		{method: "GET", path: "/a/all", verb: "all"},
		{method: "GET", path: "/b", err: `no such path: "/b"; look elsewhere`},
		{method: "GET", path: "", err: `no such path: ""; look elsewhere`},
		{method: "POST", path: "/a/x", err: `no such method: "POST"; /a/{id} has GET, PUT`, allow: "GET, PUT"},
		{method: "PUT", path: "/a", err: `no such method: "PUT"; /a has GET`, allow: "GET"},
	} {
		h := http.Header{}
		r, id, err := rt.find(c.method, c.path, h)
		verb, said := "", ""
		if r != nil {
			verb = r.Verb
		}
		if err != nil {
			said = err.Error()
		}
		if verb != c.verb || id != c.id || said != c.err || h.Get("Allow") != c.allow {
			t.Errorf("%s %q: %q with id %q, allowed %q: %q", c.method, c.path, verb, id, h.Get("Allow"), said)
		}
	}
}
