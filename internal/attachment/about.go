package attachment

import (
	"strings"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/stamp"
)

// About returns what the log says of an attachment, as pairs of keys and values.
func (e *Entry) About() []any {
	var addrs []string
	for _, a := range e.Interface.Addresses {
		addrs = append(addrs, a.String())
	}
	about := AboutKey(e.Record.Key, e.Record.Pod)
	return append(about, "addresses", strings.Join(addrs, ","), "id", e.Owner.ID)
}

// AboutKey returns what the log says of an attachment of which only the key is known, and
// perhaps the pod.
func AboutKey(k stamp.Key, pod *api.Pod) []any {
	var about []any
	if pod != nil && pod.Name != "" {
		about = append(about, "pod", pod.Namespace+"/"+pod.Name)
	}
	for _, a := range []struct{ key, value string }{{"container", k.ContainerID}, {"interface", k.Ifname}, {"network", k.Network}} {
		if a.value != "" {
			about = append(about, a.key, a.value)
		}
	}
	return about
}
