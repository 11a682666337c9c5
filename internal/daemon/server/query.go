package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// Query has a request's parameters by name. A request has each parameter at most once.
type Query map[string]string

// parseQuery reads a request's parameters, and refuses one that is not in allowed. An empty
// value is an error: it is more likely a mistake than the wish to match everything.
func parseQuery(r *http.Request, allowed ...string) (Query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, cni.Errorf(cni.CodeEnv, "invalid query", "%.200q: %v", r.URL.RawQuery, err)
	}
	q := Query{}
	for name, v := range values {
		switch {
		case !slices.Contains(allowed, name):
			expected := "this request takes no parameters"
			if len(allowed) > 0 {
				expected = "expected " + strings.Join(allowed, ", ")
			}
			return nil, cni.Errorf(cni.CodeEnv, "unknown query parameter", "%.64q; %s", name, expected)
		case len(v) > 1:
			return nil, cni.Errorf(cni.CodeEnv, "invalid query parameter "+name, "it appears %d times", len(v))
		case v[0] == "":
			return nil, cni.Errorf(cni.CodeEnv, "invalid query parameter "+name, "it is empty; leave it out to match everything")
		}
		q[name] = v[0]
	}
	return q, nil
}

// Flag reads a parameter that is true or false; false without it.
func (q Query) Flag(name string) (bool, error) {
	switch v := q[name]; v {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, BadParameter(name, v, "true or false")
	}
}

// BadParameter returns the error for a parameter with an invalid value.
func BadParameter(name, given, expected string) *api.Error {
	return cni.Errorf(cni.CodeEnv, "invalid query parameter "+name, "%s is %.64q; expected %s", name, given, expected)
}
