package cni

import (
	"strings"

	"github.com/berth-net/berth/api"
)

// MaxPodName is how many bytes a pod's name or namespace may have: Kubernetes
// makes them DNS subdomains (RFC 1123).
const MaxPodName = 253

// Bounds of CNI_ARGS, in bytes.
const (
	maxArgs   = 16 << 10
	maxArgKey = 128
)

// Args is what Berth takes from CNI_ARGS.
type Args struct {
	Pod *api.Pod // nil: no Kubernetes argument
}

// ParseArgs reads CNI_ARGS: K=V;K=V. Arguments that Berth does not know are an
// error unless IgnoreUnknown is among them (CNI conventions, "args").
func ParseArgs(raw string) (Args, *api.Error) {
	if raw == "" {
		return Args{}, nil
	}
	fail := func(given, expected string) (Args, *api.Error) {
		return Args{}, EnvError("CNI_ARGS", given, expected)
	}
	if len(raw) > maxArgs {
		return fail(raw, "at most 16 KiB")
	}
	var (
		pod     api.Pod
		ignore  bool
		unknown []string
		seen    = map[string]bool{}
	)
	for pair := range strings.SplitSeq(raw, ";") {
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || key == "" || len(key) > maxArgKey || !IsShowable(key, maxArgKey):
			return fail(pair, "pairs of the form KEY=VALUE, with ';' between them")
		case seen[key]:
			return fail(pair, key+" once")
		}
		seen[key] = true
		field, limit := podField(&pod, key)
		switch {
		case field != nil:
			if !IsShowable(value, limit) {
				return fail(pair, "a value of printable characters, as long as Kubernetes allows")
			}
			*field = value
		case key == "IgnoreUnknown":
			if ignore, ok = parseBool(value); !ok {
				return fail(pair, "IgnoreUnknown=1, true, 0 or false")
			}
		default:
			unknown = append(unknown, pair)
		}
	}
	if len(unknown) > 0 && !ignore {
		return fail(strings.Join(unknown, ";"), "K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID, K8S_POD_INFRA_CONTAINER_ID, "+
			"or IgnoreUnknown=1 beside what a plugin may ignore")
	}
	if pod == (api.Pod{}) {
		return Args{}, nil
	}
	return Args{Pod: &pod}, nil
}

// podField returns the field for a Kubernetes argument, and how many bytes its value may
// have; nil if key is no Kubernetes argument.
func podField(pod *api.Pod, key string) (*string, int) {
	switch key {
	case "K8S_POD_NAMESPACE":
		return &pod.Namespace, MaxPodName
	case "K8S_POD_NAME":
		return &pod.Name, MaxPodName
	case "K8S_POD_UID":
		return &pod.UID, api.MaxID
	case "K8S_POD_INFRA_CONTAINER_ID":
		return &pod.InfraContainer, api.MaxID
	}
	return nil, 0
}

// parseBool reads a boolean as the CNI library does.
func parseBool(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "1", "true":
		return true, true
	case "0", "false":
		return false, true
	}
	return false, false
}
