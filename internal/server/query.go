package server

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
)

// query is a request's parameters, each of which is there once.
type query map[string]string

// parseQuery reads the parameters of a request that may have those in allowed.
// An empty value is an error: it is more likely a mistake than the wish to
// match everything.
func parseQuery(r *http.Request, allowed ...string) (query, *api.Error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, cni.Errorf(cni.CodeEnv, "invalid query", "%.200q: %v", r.URL.RawQuery, err)
	}
	q := query{}
	for name, v := range values {
		switch {
		case !slices.Contains(allowed, name):
			expected := "this request has none"
			if len(allowed) > 0 {
				expected = "expected " + strings.Join(allowed, ", ")
			}
			return nil, cni.Errorf(cni.CodeEnv, "unknown query parameter", "%.64q; %s", name, expected)
		case len(v) > 1:
			return nil, cni.Errorf(cni.CodeEnv, "invalid query parameter "+name, "it is there %d times", len(v))
		case v[0] == "":
			return nil, cni.Errorf(cni.CodeEnv, "invalid query parameter "+name, "it is empty; leave it out to match everything")
		}
		q[name] = v[0]
	}
	return q, nil
}

// flag reads a parameter that is true or false; false without it.
func (q query) flag(name string) (bool, *api.Error) {
	switch v := q[name]; v {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, badParameter(name, v, "true or false")
	}
}

func badParameter(name, given, expected string) *api.Error {
	return cni.Errorf(cni.CodeEnv, "invalid query parameter "+name, "%s is %.64q; expected %s", name, given, expected)
}

// Parameters that choose attachments. A deletion has no state, which changes
// too quickly to delete by.
var (
	choosing           = []string{"network", "container", "ifname", "namespace", "pod", "uid", "address", "link"}
	deletionParameters = append(slices.Clip(choosing), "wait")
	listParameters     = append(slices.Clip(choosing), "state")
)

// filter reads the parameters that choose attachments.
func (q query) filter() (api.Filter, *api.Error) {
	f := api.Filter{
		Network: q["network"], Container: q["container"], Ifname: q["ifname"],
		Namespace: q["namespace"], Pod: q["pod"], UID: q["uid"],
		State: q["state"], Link: q["link"],
	}
	for _, p := range []struct {
		name, value string
		check       func(string) *api.Error
	}{
		{"network", f.Network, cni.CheckNetworkName},
		{"container", f.Container, cni.CheckContainerID},
		{"ifname", f.Ifname, cni.CheckIfname},
		{"link", f.Link, cni.CheckIfname},
		{"namespace", f.Namespace, printable(cni.MaxPodName)},
		{"pod", f.Pod, printable(cni.MaxPodName)},
		{"uid", f.UID, printable(api.MaxID)},
		{"state", f.State, checkState},
	} {
		if p.value == "" {
			continue
		}
		if e := p.check(p.value); e != nil {
			return api.Filter{}, cni.Errorf(cni.CodeEnv, "invalid query parameter "+p.name, "%s", e.Details)
		}
	}
	if a := q["address"]; a != "" {
		ip, err := netip.ParseAddr(a)
		if err != nil || ip.Zone() != "" {
			return api.Filter{}, badParameter("address", a, "an IPv4 or IPv6 address without a prefix length")
		}
		f.Address = ip.Unmap().String()
	}
	return f, nil
}

// deletion reads the parameters of a deletion, which has to name a container
// or a pod: nothing deletes a whole network by a slip.
func (q query) deletion() (api.Filter, *api.Error) {
	f, err := q.filter()
	if err != nil {
		return api.Filter{}, err
	}
	if f.Container == "" && (f.Namespace == "" || f.Pod == "") {
		return api.Filter{}, cni.Errorf(cni.CodeEnv, "too little to delete by",
			"a deletion names a container, or a namespace and a pod")
	}
	return f, nil
}

func checkState(s string) *api.Error {
	if slices.Contains(api.States(), s) {
		return nil
	}
	return badParameter("state", s, "one of "+strings.Join(api.States(), ", "))
}

// printable returns a check for text of at most limit bytes.
func printable(limit int) func(string) *api.Error {
	return func(s string) *api.Error {
		if !cni.IsShowable(s, limit) {
			return cni.Errorf(cni.CodeEnv, "", "it is %.64q (%d bytes); expected at most %d printable characters", s, len(s), limit)
		}
		return nil
	}
}
